"""The dashboard as a separate program: its token, its login, and the command that serves it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2
import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sqlqueue import ArgumentError
from sqlqueue.cli import application
from sqlqueue.dashboard import Action, Dashboard, standalone
from sqlqueue.dashboard.standalone import Token, with_login
from tests.dashboard.clients import ELSEWHERE, LOCAL, OWN, TOKEN, client, protected
from tests.dashboard.models import Base

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_token_protects_the_standalone_dashboard(sessions: sessionmaker[Any]) -> None:
    app = protected(sessions)
    assert app.get("/", headers=BROWSER, follow_redirects=False).headers["location"] == "/login"
    assert app.get("/").status_code == 401
    assert app.post("/queue/email/pause", headers=OWN).status_code == 403
    assert app.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert app.get("/", headers={"Authorization": "Bearer no"}).status_code == 401
    assert app.get("/", params={"token": TOKEN}).status_code == 401


def test_the_login_form_sets_a_cookie_that_is_not_the_token(sessions: sessionmaker[Any]) -> None:
    app = protected(sessions)
    assert app.post("/login", data={"token": "wrong"}, headers=OWN).status_code == 403
    assert app.post("/login", data={"token": TOKEN}).status_code == 403
    answer = app.post("/login", data={"token": TOKEN}, headers=OWN, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert "email" in app.get("/").text
    assert app.post("/queue/email/pause", headers=OWN).status_code == 403


def test_over_tls_the_cookie_is_sent_only_over_tls(sessions: sessionmaker[Any]) -> None:
    app = protected(sessions, base="https://queues.example.org")
    answer = app.post("/login", data={"token": TOKEN}, headers=OWN, follow_redirects=False)
    assert "Secure" in answer.headers["set-cookie"]


def test_behind_a_tls_proxy_the_cookie_is_sent_only_over_tls(sessions: sessionmaker[Any]) -> None:
    """The server itself sees http."""
    app = protected(sessions)
    headers = {**OWN, "origin": "https://10.0.0.1:8090"}
    answer = app.post("/login", data={"token": TOKEN}, headers=headers, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-sqlqueue_dashboard=")
    assert "Secure" in cookie
    assert "Path=/;" in cookie
    assert "Domain" not in cookie
    assert app.get("/", headers={"Cookie": cookie.partition(";")[0]}).status_code == 200


def test_logging_out_ends_the_login(sessions: sessionmaker[Any]) -> None:
    app = protected(sessions)
    answer = app.post("/login", data={"token": TOKEN}, headers=OWN, follow_redirects=False)
    login = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    app.cookies.clear()
    assert 'action="/logout"' in app.get("/", headers=login).text
    assert app.get("/logout", headers=login, follow_redirects=False).status_code == 404
    assert app.post("/logout", headers=login).status_code == 403  # from another site
    assert app.get("/", headers=login).status_code == 200
    answer = app.post("/logout", headers={**OWN, **login}, follow_redirects=False)
    assert answer.headers["location"] == "/login"
    assert app.get("/", headers=login).status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert "/logout" not in app.get("/", headers=bearer).text


def test_wrong_tokens_are_logged_with_the_address(
    sessions: sessionmaker[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "DELAY", 0)
    app = protected(sessions)
    app.post("/login", data={"token": "wrong-token"}, headers={**OWN, "x-forwarded-for": "203.0.113.9"})
    app.get("/", headers={"Authorization": "Bearer wrong-token"})
    app.get("/", headers={"Authorization": f"Bearer {TOKEN}"})
    app.get("/", headers={"Cookie": "sqlqueue_dashboard=wrong"})
    assert caplog.messages == ["wrong token from 10.0.0.7 (forwarded for 203.0.113.9)", "wrong token from 10.0.0.7"]


def test_each_wrong_token_delays_all_attempts(sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    order: list[int] = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await pause(0.05)

    monkeypatch.setattr(standalone.asyncio, "sleep", sleep)
    token = Token(TOKEN, [])
    app = with_login(Dashboard(sessions, Base, authorize=token), token)

    async def attempt(number: int, given: str) -> None:
        peer = (f"10.0.0.{number}", 1)
        transport = httpx2.ASGITransport(app, client=peer)
        async with httpx2.AsyncClient(transport=transport, base_url="http://10.0.0.1") as one:
            answer = await one.post("/login", data={"token": given}, headers=OWN)
        assert answer.status_code == (303 if given == TOKEN else 403)
        order.append(number)

    async def attempts() -> None:
        underway = []
        for number, given in enumerate(["no"] * 7 + [TOKEN]):
            underway.append(asyncio.create_task(attempt(number, given)))
            await pause(0.02)
        await asyncio.gather(*underway)

    asyncio.run(attempts())
    assert delays == [0.5, 1, 2, 4, 8, 8, 8]
    assert order == list(range(8))  # the right one, too, waits for those before it


def test_too_many_attempts_at_once_are_refused(sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "LINE", 0)
    app = protected(sessions)
    assert app.post("/login", data={"token": TOKEN}, headers=OWN).status_code == 429
    assert app.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 429


def test_a_login_ends(sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for lasts, status in ((60, 200), (0, 401)):
        monkeypatch.setattr(standalone, "LASTS", lasts)
        app = protected(sessions)
        answer = app.post("/login", data={"token": TOKEN}, headers=OWN, follow_redirects=False)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert app.get("/", headers={"Cookie": cookie}).status_code == status


def test_a_token_permits_only_the_actions_that_were_allowed(sessions: sessionmaker[Any]) -> None:
    app = protected(sessions, Action.PAUSE, Authorization=f"Bearer {TOKEN}")
    assert app.post("/queue/email/resume", headers=OWN).status_code == 403
    assert app.post("/queue/email/pause", headers=OWN, follow_redirects=False).status_code == 303


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--token", "short"], "at least 16"), (["--allow", "everything"], "the actions are")],
)
def test_the_command_rejects_bad_usage(arguments: list[str], reason: str) -> None:
    given = ["dashboard", "tests.dashboard.models:Base", "--url", "sqlite://", *arguments]
    result = CliRunner().invoke(application(), given)
    assert result.exit_code == 2
    assert reason in result.output


class Started(NamedTuple):
    """What the command served, and what it printed."""

    options: dict[str, Any]
    output: str


@pytest.fixture
def start(sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Started]]:
    """Return a function that calls the command without serving anything; what it would serve can be used."""
    engines: list[Engine] = []

    def create(url: URL) -> Engine:
        engines.append(create_engine(url))
        return engines[-1]

    def started(*arguments: str) -> Started:
        options: dict[str, Any] = {}
        monkeypatch.setattr("uvicorn.run", lambda app, **others: options.update(app=app, **others))
        url = sessions.kw["bind"].url.render_as_string()
        given = ["dashboard", "tests.dashboard.models:Base", "--url", url, *arguments]
        result = CliRunner().invoke(application(), given)
        assert result.exit_code == 0, result.output
        return Started(options, result.output)

    monkeypatch.setattr("sqlqueue.cli.work.create_engine", create)
    yield started
    for engine in engines:
        engine.dispose()


def test_by_default_the_command_listens_on_loopback_and_permits_no_action(start: Callable[..., Started]) -> None:
    started = start("--token", TOKEN)
    assert (started.options["host"], started.options["proxy_headers"]) == ("127.0.0.1", False)
    assert TOKEN not in started.output
    app = client(started.options["app"], Authorization=f"Bearer {TOKEN}")
    assert "email" in app.get("/").text
    assert app.post("/queue/email/cancel", data={"key": "150"}, headers=OWN).status_code == 403


@pytest.mark.parametrize("arguments", [(), ("--allow", "all"), ("--host", "0.0.0.0")])
def test_without_a_token_the_command_makes_one_and_prints_it(
    start: Callable[..., Started], arguments: tuple[str, ...]
) -> None:
    """Otherwise everything on this machine, and everyone behind a proxy on it, could see and change the queues."""
    tokens = []
    for _ in range(2):
        started = start(*arguments)
        app = started.options["app"]
        (token,) = re.findall(r"token (\S{32})$", started.output, re.MULTILINE)
        for peer in (LOCAL, ELSEWHERE):
            assert client(app, peer=peer).get("/").status_code == 401
            assert client(app, peer=peer).post("/queue/email/pause", headers=OWN).status_code == 403
        assert "email" in client(app, Authorization=f"Bearer {token}").get("/").text
        tokens.append(token)
    assert tokens[0] != tokens[1]


def test_short_tokens_are_rejected() -> None:
    with pytest.raises(ArgumentError, match="at least 16"):
        Token("short", [])
