"""The contents of pages, the queries for them, and the effects of actions."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import ArgumentError, AsyncQueueSession, Rate
from sqlqueue._support.errors import WorkerTokens
from sqlqueue._support.texts import error_group
from sqlqueue.dashboard import Dashboard
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.queue.spec import spec_of
from tests.dashboard.clients import OWN
from tests.dashboard.models import Base, Crawl, Digest, Email
from tests.dashboard.serving import ERROR, dashboard, register

PAGES = [
    "/",
    "/queue/email",
    "/queue/orders",
    "/queue/email/task?key=62",
    "/errors",
    "/schedules",
    "/limits",
    "/workers",
    "/outbox",
    "/pipelines",
]


def states(sessions: sessionmaker[Any], model: Any = Email) -> dict[int, str]:
    with sessions() as session:
        return {task.id: task.status for task in session.find(model)}


def keys(text: str) -> list[str]:
    return re.findall(r'name="key" value="(\d+)"', text)


def test_pages_are_the_same_with_asyncio(app: TestClient, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'queues.db'}")
    with TestClient(dashboard(async_sessionmaker(engine, class_=AsyncQueueSession)), headers=OWN) as other:
        for path in PAGES:
            answer, expected = other.get(path), app.get(path)
            assert answer.status_code == 200
            assert [part for part in ("email", "digest", "crawl", "orders") if part in expected.text] == [
                part for part in ("email", "digest", "crawl", "orders") if part in answer.text
            ]
        other.portal.call(engine.dispose)


def test_tasks_by_filter_and_page_by_page(app: TestClient) -> None:
    first = app.get("/queue/email", params={"status": "available"}).text
    (after,) = re.findall(r"after=([^&\"]+)", first)
    second = app.get("/queue/email", params={"status": "available", "after": after}).text
    assert (len(keys(first)), len(keys(second))) == (50, 28)
    assert not set(keys(first)) & set(keys(second))
    (before,) = re.findall(r"before=([^&\"]+)", second)
    assert keys(app.get("/queue/email", params={"status": "available", "before": before}).text) == keys(first)
    assert len(keys(app.get("/queue/email", params={"error": "Disconnected"}).text)) == 5
    assert keys(app.get("/queue/email", params={"column.recipient": "user7@example.org"}).text) == ["8"]
    assert keys(app.get("/queue/email", params={"newer": "1s", "older": "7d"}).text) == []
    assert keys(app.get("/queue/email", params={"newer": "1h", "column.recipient": "user7@example.org"}).text) == ["8"]
    assert keys(app.get("/queue/email", params={"since": "2020-01-01T00:00", "error": "Disconnected"}).text) == keys(
        app.get("/queue/email", params={"error": "Disconnected"}).text
    )
    assert keys(app.get("/queue/email", params={"until": "2020-01-01T00:00"}).text) == []
    for problem in (
        {"older": "soon"},
        {"status": "x"},
        {"after": "x"},
        {"before": "x"},
        {"key": "one"},
        {"since": "x"},
    ):
        assert app.get("/queue/email", params=problem).status_code == 400


def test_viewers_share_what_is_read(sessions: sessionmaker[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.site.TIMES", 1e9)
    monkeypatch.setattr(
        "sqlqueue.dashboard.site.LONGEST", 3_600
    )  # on a busy machine, seconds can pass between two requests
    statements: list[str] = []
    event.listen(sessions.kw["bind"], "before_cursor_execute", lambda *given: statements.append(given[2]))
    with TestClient(dashboard(sessions)) as app:
        for path in PAGES:
            first = app.get(path)
            read = len(statements)
            assert read
            assert app.get(path).headers["etag"] == first.headers["etag"]
            assert app.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
            assert len(statements) == read
        time.sleep(0.3)
        assert len(statements) == read


def test_a_page_that_has_changed_is_sent_again(app: TestClient) -> None:
    before = app.get("/queue/email").headers["etag"]
    app.post("/queue/email/pause", data={})
    answer = app.get("/queue/email", headers={"If-None-Match": before})
    assert (answer.status_code, "was paused" in answer.text) == (200, True)


def test_an_action_on_one_task(app: TestClient, sessions: sessionmaker[Any]) -> None:
    question = app.get("/queue/email/confirm/cancel", params={"key": "150"}).text
    assert "<b>1</b> task will be changed" in question
    answer = app.post("/queue/email/cancel", data={"key": "150"})
    assert "1 of 1 tasks changed" in answer.text
    assert answer.url.path == "/queue/email/task"
    assert states(sessions)[150] == "cancelled"


def test_an_action_on_a_selection(app: TestClient, sessions: sessionmaker[Any]) -> None:
    app.post("/queue/email/discard", data={"key": ["149", "150"], "reason": "not wanted"})
    with sessions() as session:
        assert {task.id for task in session.find(Email, Email.error == "not wanted")} == {149, 150}


def test_an_action_on_all_that_match(app: TestClient, sessions: sessionmaker[Any]) -> None:
    filter = {"scope": "filter", "error_group": error_group(ERROR)}
    assert "<b>5</b> tasks will be changed: 5 discarded" in app.get("/queue/email/confirm/retry", params=filter).text
    done = app.post("/queue/email/retry", data=filter).text
    assert f"retry email where error_group = {error_group(ERROR)}. 5 of 5 tasks changed" in re.sub(r"\s+", " ", done)
    assert sorted(states(sessions).values()).count("discarded") == 1
    app.post("/queue/email/run-now", data={"scope": "filter"})
    assert "retryable" not in states(sessions).values()


def test_a_final_task_runs_again(app: TestClient, sessions: sessionmaker[Any]) -> None:
    app.post("/queue/email/cancel", data={"key": "150"})
    assert "Run again</a>" in app.get("/queue/email/task", params={"key": "150"}).text
    assert "1 cancelled" in app.get("/queue/email/confirm/rerun", params={"key": "150"}).text
    assert "1 of 1 tasks changed" in app.post("/queue/email/rerun", data={"key": "150"}).text
    assert states(sessions)[150] == "available"
    assert "<b>0</b> tasks" in app.get("/queue/email/confirm/rerun", params={"key": "150"}).text


def test_an_action_requires_a_selection(app: TestClient, sessions: sessionmaker[Any]) -> None:
    before = states(sessions)
    for data in ({}, {"status": "available"}, {"key": ""}):
        assert app.post("/queue/email/cancel", data=data).status_code == 400
    assert app.post("/queue/email/cancel", data={"key": "one"}).status_code == 400
    assert app.post("/queue/email/explode", data={"key": "1"}).status_code == 404
    assert app.post("/queue/nothing/cancel", data={"key": "1"}).status_code == 404
    assert app.post("/queue/email/cancel", data={"key": [str(n) for n in range(1, 1_002)]}).status_code == 400
    assert states(sessions) == before


def test_invalid_forms_are_rejected(app: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert app.post("/queue/email/pause", content=b"reason=\xff").status_code == 400
    monkeypatch.setattr("sqlqueue.dashboard.actions.LARGEST", 100)
    assert app.post("/queue/email/pause", data={"reason": "x" * 100}).status_code == 413


def test_pause_and_resume(app: TestClient, sessions: sessionmaker[Any]) -> None:
    page = app.post("/queue/email/pause", data={"topic": "news", "reason": "the server is down"}).text
    assert "was paused by ada" in page
    assert "the server is down" in page
    app.post("/queue/email/resume", data={"topic": "news"})
    with sessions() as session:
        assert session.paused(Email) == []


def test_keys_are_shown_and_paused(app: TestClient, sessions: sessionmaker[Any]) -> None:
    """Those of one page, with what keeps their tasks from starting; the form names the key as text."""
    shown = app.get("/queue/crawl").text
    row = shown[shown.index('<th scope="row">a.org') :].partition("</tr>")[0]
    assert "■ full" in row
    assert "limit_key=a.org&amp;limit=2" in row
    question = app.get("/queue/crawl/confirm/pause", params={"of_key": "a.org"}).text
    assert "Key <b>a.org</b>" in question
    page = app.post("/queue/crawl/pause", data={"of_key": "a.org", "reason": "it is down"}).text
    assert "The key <b>a.org</b> was paused by ada" in page
    with sessions() as session:
        assert [pause.key for pause in session.paused(Crawl)] == ["a.org"]
    assert "tasks with the key a.org again" in app.get("/queue/crawl/confirm/resume", params={"of_key": "a.org"}).text
    app.post("/queue/crawl/resume", data={"of_key": "a.org"})
    with sessions.begin() as session:
        assert session.paused(Crawl) == []
        session.add_all([Crawl(limit_key=f"site {n:02}") for n in range(30)])
    assert "after_key=site+08" in app.get("/queue/crawl?after_key=a").text
    later = app.get("/queue/crawl?after_key=site+08").text
    assert ['<th scope="row">site 08' in later, '<th scope="row">site 09' in later] == [False, True]
    for queue, key in (("email", "x"), ("crawl", "\0")):
        assert app.post(f"/queue/{queue}/pause", data={"of_key": key}).status_code == 400
    assert app.get("/queue/crawl?after_key=%00").status_code == 400


def test_set_a_limit_and_reschedule(app: TestClient, sessions: sessionmaker[Any]) -> None:
    app.post("/queue/crawl/set-limit", data={"limit_key": "a.org", "limit": "7"})
    app.post("/queue/crawl/set-rate", data={"limit_key": "a.org", "starts": "100", "per": "1m"})
    app.post("/queue/digest/reschedule", data={"key": "1", "schedule": "PT5M"})
    with sessions() as session:
        found = {each.key: each for each in session.limits(Crawl)}["a.org"]
        assert (found.limit, found.rate) == (7, Rate(100, per=timedelta(minutes=1)))
        assert [task.schedule for task in session.find(Digest)] == ["PT5M", "PT21600S"]
    for path, data in [
        ("/queue/crawl/set-limit", {"limit_key": "a.org", "limit": "x"}),
        ("/queue/crawl/set-rate", {"limit_key": "a.org", "starts": "x", "per": "1m"}),
        ("/queue/crawl/set-rate", {"limit_key": "a.org", "starts": "0", "per": "1m"}),
        ("/queue/crawl/set-rate", {"limit_key": "a.org", "starts": "3", "per": "soon"}),
        ("/queue/crawl/set-rate", {"limit_key": "a.org", "starts": "3"}),
        ("/queue/digest/reschedule", {"key": "1", "schedule": "soon"}),
        ("/queue/digest/reschedule", {"schedule": "PT5M"}),
        ("/queue/email/reschedule", {"key": "1", "schedule": "PT5M"}),
    ]:
        assert app.post(path, data=data).status_code == 400
    for page in ("/limits", "/queue/crawl"):
        assert "starts=100&amp;per=1m" in app.get(page).text
    app.post("/queue/crawl/set-rate", data={"limit_key": "a.org", "starts": "", "per": ""})
    with sessions() as session:
        assert {each.key: each.rate for each in session.limits(Crawl)}["a.org"] is None


def told(sessions: sessionmaker[Any]) -> dict[str, tuple[str | None, int | None]]:
    with sessions() as session:
        return {each.name: (each.command, each.concurrency) for each in session.workers(Base)}


def test_commands_for_one_worker_and_for_all(app: TestClient, sessions: sessionmaker[Any]) -> None:
    register(sessions, "mail", "web")
    register(sessions, "silent", ago=timedelta(minutes=1))
    question = app.get("/workers/confirm/drain-workers", params={"worker": "id-1-web"}).text
    assert "<b>1</b> live worker will receive this command: web. Running tasks: <b>3</b>" in question
    assert app.post("/workers/drain-workers", data={"worker": "id-1-web"}).url.path == "/workers"
    assert told(sessions) == {"mail": (None, None), "silent": (None, None), "web": ("drain", None)}
    assert "<b>2</b> live workers" in app.get("/workers/confirm/stop-workers", params={"scope": "all"}).text
    app.post("/workers/set-concurrency", data={"scope": "all", "number": "2"})
    assert "(set to 2 per handler)" in app.post("/workers/stop-workers", data={"scope": "all"}).text
    assert told(sessions) == {"mail": ("stop", 2), "silent": (None, None), "web": ("stop", 2)}
    app.post("/workers/set-concurrency", data={"worker": "id-0-mail", "number": ""})
    assert told(sessions)["mail"] == ("stop", None)


def test_the_tasks_of_a_silent_worker_are_released(app: TestClient, sessions: sessionmaker[Any]) -> None:
    register(sessions, "web")
    register(sessions, "gone", ago=timedelta(minutes=1))
    with sessions.begin() as session:
        (task,) = claim_matching(session, ClaimQuery(spec_of(Email)), 1, tokens=WorkerTokens(1))
        key = task.id
    page = app.get("/workers").text
    assert page.count("Release tasks") == 1
    question = app.get("/workers/confirm/release-workers", params={"worker": "id-0-gone"}).text
    assert "<b>gone</b>, which has been silent for 1 min" in question
    assert app.post("/workers/release-workers", data={"worker": "id-0-web"}).status_code == 409
    app.post("/workers/release-workers", data={"worker": "id-0-gone"})
    with sessions() as session:
        assert session.get(Email, key).status == "available"


def test_invalid_worker_commands_are_rejected(app: TestClient, sessions: sessionmaker[Any]) -> None:
    register(sessions, "web")
    for path, data, status in [
        ("/workers/stop-workers", {}, 400),
        ("/workers/release-workers", {"scope": "all"}, 400),
        ("/workers/set-concurrency", {"scope": "all", "number": "0"}, 400),
        ("/workers/set-concurrency", {"scope": "all", "number": "x"}, 400),
        ("/workers/set-concurrency", {"scope": "all", "number": "10001"}, 400),
        ("/workers/set-concurrency", {"scope": "all", "number": "9" * 30}, 400),
        ("/workers/stop-workers", {"worker": "gone"}, 409),
        ("/workers/cancel", {"scope": "all"}, 404),
        ("/workers/explode", {"scope": "all"}, 404),
        ("/queue/email/stop-workers", {"scope": "all", "key": "1"}, 404),
    ]:
        assert app.post(path, data=data).status_code == status
    assert told(sessions) == {"web": (None, None)}


def test_only_a_queue_that_is_not_paused_can_be_paused(app: TestClient, sessions: sessionmaker[Any]) -> None:
    pause = 'href="/queue/email/confirm/pause"'
    assert pause in app.get("/queue/email").text
    app.post("/queue/email/pause", data={"topic": "news"})
    assert pause in app.get("/queue/email").text  # other topics
    app.post("/queue/email/pause", data={})
    assert pause not in app.get("/queue/email").text
    app.post("/queue/email/resume", data={})
    assert pause in app.get("/queue/email").text


def test_invalid_limits_are_rejected(app: TestClient, sessions: sessionmaker[Any]) -> None:
    reasonable = "is not a whole number of reasonable size"
    for limit, said in {
        "10001": "limit=10001: give an integer from 0 to 10,000",
        "9" * 20: reasonable,
        "9" * 5_000: reasonable,
        "-1": reasonable,
        "1e9": reasonable,
        "": reasonable,
    }.items():
        answer = app.post("/queue/crawl/set-limit", data={"limit_key": "a.org", "limit": limit})
        assert (answer.status_code, said in answer.text) == (400, True), limit
    with sessions() as session:
        assert {each.limit for each in session.limits(Crawl)} == {2}


def test_a_task_has_its_attempts_with_tracebacks(app: TestClient, sessions: sessionmaker[Any]) -> None:
    try:
        raise TimeoutError("no answer from <b>mail</b>")
    except TimeoutError as error:
        with sessions.begin() as session:
            email = session.claim(Email, claimed_by="mailer:7")
            session.fail(email, error)
            key = email.id
    text = app.get("/queue/email/task", params={"key": key}).text
    assert re.search(r"attempt 1 \(\d left\)", text)
    assert "on mailer:7" in text
    assert "Traceback of attempt 1" in text
    assert "no answer from &lt;b&gt;mail" in text


def test_invalid_dashboard_arguments_are_rejected(sessions: sessionmaker[Any]) -> None:
    for arguments, options in [
        (("sqlite://", Base), {}),
        ((sessions, object()), {}),
        ((sessions, Base), {"columns": {Email: ["nothing"]}}),
        ((sessions, Base), {"columns": {Email: "recipient"}}),
    ]:
        with pytest.raises(ArgumentError):
            Dashboard(*arguments, **options)
