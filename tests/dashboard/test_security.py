"""Permissions to view the dashboard and change data, and restrictions on pages in a browser."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from sqlqueue.dashboard import Action, Dashboard, Viewer, only_this_machine
from sqlqueue.dashboard.access import ON_WORKERS
from tests.dashboard.clients import LOCAL, OWN, TOKEN, client, protected
from tests.dashboard.models import Base, Email, Event
from tests.dashboard.serving import HOSTILE, dashboard, register


def is_admitted(host: str, peer: tuple[str, int] | None = LOCAL, *others: tuple[bytes, bytes]) -> bool:
    headers = [(b"host", host.encode()), *others]
    return only_this_machine(Request({"type": "http", "headers": headers, "client": peer})) is not None


def test_only_this_machine_admits_local_programs_that_name_a_local_host() -> None:
    for host in ("localhost:8090", "LOCALHOST", "127.0.0.1:8090", "[::1]:8090"):
        assert is_admitted(host)
        assert is_admitted(host, ("::1", 1))
        assert not is_admitted(host, ("10.0.0.7", 1))
        assert not is_admitted(host, ("no address", 1))
        assert not is_admitted(host, None)  # servers have no peer address for a Unix socket
        assert not is_admitted(host, LOCAL, (b"host", b"rebound.example.org"))
    for host in ("rebound.example.org", "localhost.example.org", "localhost:rebound.example.org", ""):
        assert not is_admitted(host)


def test_only_this_machine_refuses_what_shows_a_proxy() -> None:
    for name in (
        *("Forwarded", "X-Forwarded", "Forwarded-For", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port"),
        *("X-Forwarded-Proto", "X-Forwarded-Server", "X-Real-IP", "X-Original-Host", "Via", "CF-Connecting-IP"),
        *("CF-Ray", "CDN-Loop", "True-Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP"),
        *("Fly-Client-IP", "Fly-Region", "X-Envoy-External-Address", "X-Amzn-Trace-Id"),
    ):
        assert not is_admitted("localhost", LOCAL, (name.lower().encode(), b"127.0.0.1")), name
    assert is_admitted("localhost", LOCAL, (b"accept", b"text/html"))


def test_without_authorize_nobody_is_admitted(sessions: sessionmaker[Any]) -> None:
    """The page tells what to write."""
    app = client(Dashboard(sessions, Base))
    for path in ("/", "/queue/email", "/queue/email/task?key=1", "/metrics", "/nothing"):
        answer = app.get(path)
        assert answer.status_code == 403
        assert "authorize=authorize" in answer.text
        assert "authorize=only_this_machine" in answer.text
    assert app.post("/queue/email/pause", headers=OWN).status_code == 403


def test_only_the_style_sheet_and_the_script_are_public(sessions: sessionmaker[Any]) -> None:
    for prefix in ("", "/static"):
        app = client(Starlette(routes=[Mount(prefix, Dashboard(sessions, Base, authorize=lambda _: None))]))
        assert app.get(f"{prefix}/static/dashboard.css").status_code == 200
        for path in ("/", "/queue/static/", "/queue/email"):
            assert app.get(prefix + path).status_code == 403


def test_only_this_machine_permits_no_changes(sessions: sessionmaker[Any]) -> None:
    app = Dashboard(sessions, Base, authorize=only_this_machine)
    register(sessions, "web")
    for action in Action:
        place = "workers" if action in ON_WORKERS else "queue/email"
        form = {"key": "1", "scope": "all"}
        assert client(app).post(f"/{place}/{action}", data=form, headers=OWN).status_code == 403
    assert client(app).get("/", headers={"Via": "a proxy"}).status_code == 403
    assert "Retry" not in client(app).get("/queue/email").text
    assert "email" in client(app).get("/").text
    assert "Drain" not in client(app).get("/workers").text


@pytest.mark.parametrize("decision", [None, RedirectResponse("/login", 303)])
def test_authorize_may_refuse(sessions: sessionmaker[Any], decision: Any) -> None:
    for asked in (lambda _: decision, _later(decision)):
        answer = client(dashboard(sessions, authorize=asked)).get("/", follow_redirects=False)
        assert answer.status_code == (403 if decision is None else 303)
        assert "email" not in answer.text


def _later(decision: Any) -> Any:
    async def authorize(_request: Any) -> Any:
        return decision

    return authorize


def test_each_action_needs_its_permission(sessions: sessionmaker[Any]) -> None:
    viewer = Viewer("ada", {Action.PAUSE})
    app = client(dashboard(sessions, authorize=lambda _: viewer))
    assert app.post("/queue/email/retry", data={"scope": "filter"}, headers=OWN).status_code == 403
    assert app.get("/queue/email/confirm/retry?scope=filter").status_code == 403
    assert app.get("/workers/confirm/drain-workers?scope=all").status_code == 403
    assert app.post("/queue/email/pause", data={}, headers=OWN, follow_redirects=False).status_code == 303


ORIGINS: list[tuple[dict[str, str], bool]] = [
    ({"sec-fetch-site": "same-origin"}, True),
    ({"sec-fetch-site": "same-site"}, False),
    ({"sec-fetch-site": "cross-site"}, False),
    ({"sec-fetch-site": "none"}, False),
    ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8090"}, False),
    ({"origin": "http://localhost:8090"}, True),
    ({"origin": "https://localhost:8090"}, True),
    ({"origin": "http://localhost:9999"}, False),
    ({"origin": "ftp://localhost:8090"}, False),
    ({"origin": "http://[::1"}, False),
    ({"origin": "null", "host": ""}, False),
    ({"origin": "null"}, False),
    ({}, False),
]


def test_writes_come_from_the_dashboards_own_pages(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions))
    for headers, allowed in ORIGINS:
        answer = app.post("/queue/email/pause", data={}, headers=headers, follow_redirects=False)
        assert (headers, answer.status_code) == (headers, 303 if allowed else 403)
        with sessions.begin() as session:
            assert session.resume(Email) == allowed


STRICT = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def test_each_response_has_strict_headers(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions))
    paths = ("/", "/queue/email", "/nothing", "/static/dashboard.js", "/queue/email/task?key=x", "/metrics")
    answers = [app.get(path) for path in paths]
    answers += [app.post("/queue/email/pause"), client(dashboard(sessions, authorize=lambda _: None)).get("/")]
    answers += [protected(sessions).get(path, follow_redirects=False) for path in ("/login", "/")]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200, 404, 200, 403, 403, 200, 401]
    for answer in answers:
        assert {name: answer.headers[name] for name in STRICT} == STRICT


def test_anonymous_requests_cause_no_errors(sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture) -> None:
    apps = [client(dashboard(sessions, authorize=lambda _: None)), protected(sessions)]
    apps += [client(Starlette(routes=[Mount("/ops", dashboard(sessions, authorize=lambda _: None))]))]
    for app, prefix in zip(apps, ("", "", "/ops"), strict=True):
        for method, path, status in [
            ("GET", "/static/nope", 404),
            ("GET", "/static/", 404),
            ("GET", "/static/..%2fapp.py", 404),
            ("GET", "/static/%00", 404),
            ("POST", "/static/dashboard.js", 405),
            ("DELETE", "/static/nope", 405),
            ("GET", "/static/dashboard.css/", 404),
        ]:
            answer = app.request(method, prefix + path, headers=OWN)
            assert answer.status_code == status
            assert {name: answer.headers[name] for name in STRICT} == STRICT
        for headers in ({"host": "[::1"}, {"origin": "http://[::1"}, {"cookie": "a=" * 1_000}, {"accept": "text/html"}):
            for method in ("GET", "POST"):
                answer = app.request(method, f"{prefix}/queue/email", headers=headers, follow_redirects=False)
                assert answer.status_code in (303, 401, 403)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_no_link_leads_to_another_host(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions))
    text = app.get("http://localhost:8090//evil.example.org/?change=x&topic=a").text
    assert "Progress unknown" in text
    assert "evil.example.org" not in text
    assert 'href="?topic=a">Dismiss' in text


def test_no_response_redirects_to_the_host_of_the_request(sessions: sessionmaker[Any]) -> None:
    for app in (client(dashboard(sessions)), protected(sessions, Authorization=f"Bearer {TOKEN}")):
        for path in ("/queue/email/", "/static", "/login/", "/workers/"):
            answer = app.get(path, headers={"host": "evil.example.org"}, follow_redirects=False)
            assert answer.status_code == 404
            assert "location" not in answer.headers


def cursor_of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


ODD = [
    ("/queue/email?after=" + cursor_of("[" * 40_000), 400),
    ("/queue/email?after=" + cursor_of("[" + "9" * 5_000 + "]"), 400),
    ("/queue/email?status=scheduled&after=" + cursor_of('["0001-01-01T00:00:00+14:00", "1"]'), 400),
    ("/queue/page?after=" + cursor_of('["\\u0000"]'), 400),
    ("/queue/page?after=" + cursor_of("[null]"), 400),
    ("/queue/email?status=scheduled&before=" + cursor_of("[null, null]"), 400),
    ("/queue/email?since=0001-01-01T00:00%2B14:00", 400),
    ("/queue/email?until=9999-12-31T23:59:59-14:00", 400),
    ("/queue/email?older=99999w", 400),
    ("/queue/email?topic=%00", 400),
    ("/queue/email?error=a%00", 400),
    ("/queue/email?error_group=%00", 400),
    ("/queue/email?column.recipient=%00", 400),
    ("/queue/page?key=%00", 400),
    ("/queue/page/task?key=%00", 404),
    ("/queue/page/task?key=%ED%A0%80", 404),
    ("/queue/%00", 404),
]


def test_odd_requests_are_rejected_with_a_sentence(
    sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = client(dashboard(sessions))
    for path, status in ODD:
        answer = app.get(path)
        assert (path, answer.status_code) == (path, status)
        assert "database did not respond" not in answer.text
    assert caplog.records == []


@pytest.mark.parametrize("queue", ["email", "page"])
def test_many_tasks_can_be_selected_but_not_very_many(sessions: sessionmaker[Any], queue: str) -> None:
    app = client(dashboard(sessions), **OWN)
    keys = {"key": [str(number) for number in range(500)]}
    assert app.post(f"/queue/{queue}/cancel", data=keys, follow_redirects=False).status_code == 303
    answer = app.post(f"/queue/{queue}/cancel", data={"key": [*keys["key"], "500"]})
    assert answer.status_code == 400
    assert "Select at most 500 tasks" in answer.text


def test_logged_errors_are_escaped(sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture) -> None:
    def link(task: Any) -> str:
        raise OSError("first\nada: forged \x1b[31m\u202e")

    app = client(dashboard(sessions, link=link))
    assert app.get("/queue/email/task?key=1").status_code == 503
    (record,) = caplog.records
    text = record.exc_text or ""
    assert "forged" in text
    assert "\nada" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_only_named_columns_are_shown(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions, columns={}, filters={}))
    assert "example.org" not in app.get("/queue/email").text
    assert "example.org" not in app.get("/queue/email/task?key=1").text
    assert "payload-secret" not in app.get("/queue/event/task?key=1").text
    named = client(dashboard(sessions, columns={Email: ["recipient"], Event: ["payload"]}))
    assert "user1@example.org" in named.get("/queue/email/task?key=2").text
    assert "payload-secret" in named.get("/queue/event/task?key=1").text


def test_the_token_of_a_claim_is_not_shown(sessions: sessionmaker[Any]) -> None:
    with sessions() as session:
        (email, *_) = session.find(Email, Email.status == "running")
    text = client(dashboard(sessions)).get("/queue/email/task", params={"key": str(email.id)}).text
    assert "mailer:2" in text
    assert str(email.claim_token) not in text
    assert "claim token" not in text


def test_tasks_cannot_be_filtered_by_a_column_that_is_not_named(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions))  # filters: the recipient
    assert "No matching tasks" in app.get("/queue/email", params={"column.recipient": "nobody"}).text
    assert "No matching tasks" not in app.get("/queue/email", params={"column.secret": "nobody"}).text


def test_no_change_is_made_by_following_a_link(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions))
    for path in (
        "/queue/email/cancel?key=150",
        "/queue/email/pause",
        "/workers/stop-workers?scope=all",
        "/changes/x/stop",
    ):
        assert app.get(path, headers=OWN).status_code == 405
    with sessions() as session:
        assert session.paused(Email) == []
        assert [task.status for task in session.find(Email, Email.id == 150)] == ["available"]


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_actions_lead_back_to_a_page_of_the_dashboard(sessions: sessionmaker[Any], action: str) -> None:
    """The request cannot name another address."""
    app, evil = client(dashboard(sessions)), "https://evil.example.org/"
    path, fields = f"/queue/email/{action}", {"back": evil, "next": evil, "key": "150"}
    answer = app.post(path, data=fields, params=fields, headers={**OWN, "referer": evil}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/queue/email")


def test_redact_and_link(sessions: sessionmaker[Any]) -> None:
    def redact(task: Any, name: str, value: Any) -> object:
        return "***" if name == "recipient" else value

    links = {1: "https://shop.example.org/emails/1", 2: "javascript:alert(1)"}
    app = client(dashboard(sessions, redact=redact, link=lambda task: links.get(task.id)))
    text = app.get("/queue/email/task?key=1").text
    assert "user0@" not in text
    assert "***" in text
    assert 'href="https://shop.example.org/emails/1"' in text
    assert "javascript:" not in app.get("/queue/email/task?key=2").text


def test_nothing_is_rendered_as_markup(sessions: sessionmaker[Any]) -> None:
    app = client(dashboard(sessions, columns={Email: ["recipient", "secret"]}))
    register(sessions, HOSTILE)
    pages = ["/", "/queue/email", "/queue/email?status=discarded", "/errors", "/limits", "/schedules", "/queue/page"]
    for path in (*pages, "/workers", "/workers/confirm/stop-workers?scope=all"):
        text = app.get(path).text
        assert "<img" not in text
        assert "<script>" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
    assert app.get("/queue/page/task", params={"key": HOSTILE}).status_code == 200


def test_a_database_error_reveals_no_details(sessions: sessionmaker[Any], tmp_path: Any) -> None:
    with sessions() as session:
        session.connection().exec_driver_sql("DROP TABLE email")
    answer = client(dashboard(sessions)).get("/queue/email")
    assert answer.status_code == 503
    assert "no such table" not in answer.text


def test_actions_are_logged_with_the_viewer(sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sqlqueue.dashboard")
    app = client(dashboard(sessions))
    app.post("/queue/email/cancel", data={"key": "150"}, headers=OWN)
    assert caplog.messages == ["ada: cancel email 150", "ada: cancel email 150: done, 1 tasks changed"]
    app.post("/queue/email/discard", data={"key": "149", "reason": "a\nada: forged"}, headers=OWN)
    app.post("/queue/email/pause", data={"reason": "a\nada: forged"}, headers=OWN)
    assert "ada: pause email" in caplog.text
    register(sessions, "web", "mail\nada: forged")
    app.post("/workers/drain-workers", data={"worker": "id-0-web"}, headers=OWN)
    app.post("/workers/set-concurrency", data={"scope": "all", "number": "2"}, headers=OWN)
    assert "ada: drain-workers: web" in caplog.text
    assert "ada: set-concurrency 2: all, mail" in caplog.text
    assert "\nada: forged" not in caplog.text
