"""Rows that cannot be read do not keep operators from finding them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import Claim, check
from sqlqueue.dashboard import Action, Dashboard, Viewer
from sqlqueue.lifecycle.reasons import Cause
from sqlqueue.operations import unreadable
from tests.cli.invoking import told
from tests.suite.test_unreadable_rows import again, signs, states
from tests.support.harness import Database
from tests.support.models import Base, Sign, Task
from tests.worker.test_unreadable_rows import insert_odd_times


def test_find_leaves_them_out_and_says_so(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    unreadable._said.clear()
    signs(db, "rose", "dove", "rose")
    with caplog.at_level(logging.ERROR), db.begin() as actor:
        assert [task.id for task in actor.find(Sign)] == [1, 3]
        assert [task.id for task in actor.find(Sign, Sign.id > 1, order_by=Sign.id.desc(), limit=2)] == [3]
    (record,) = caplog.records
    assert record.getMessage().startswith("Sign 2 cannot be read: LookupError")


def test_list_and_show(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove")
    listed = told(sync_db, "list", "--json", target="Sign")
    assert [task["key"] for task in listed] == ["2", "1"]
    assert listed[0]["status"] == "available"
    assert listed[0]["columns"]["symbol"].startswith("(cannot be read: LookupError: 'dove'")
    assert listed[1]["columns"] == {"id": 1, "symbol": "rose"}
    assert "cannot be read" in told(sync_db, "list", target="Sign")
    assert "cannot be read" in told(sync_db, "show", "2", target="Sign")
    assert told(sync_db, "show", "--json", "2", target="Sign")["columns"]["id"] == 2


@pytest.mark.parametrize("column", ["available_at", "created_at"])
def test_odd_times(sync_db: Database, column: str) -> None:
    number = insert_odd_times(sync_db, column, "scheduled")
    assert len(told(sync_db, "list", "--json")) == number
    told(sync_db, "list")
    first, *_ = states(sync_db, Task)
    explained = told(sync_db, "why", str(first), "--json")
    assert {reason["cause"] for reason in explained["reasons"]}.isdisjoint({"unreadable", "missing"})
    for key in states(sync_db, Task):
        told(sync_db, "show", str(key))
        explained = told(sync_db, "why", str(key), "--json")
        assert explained["status"] == "scheduled"
        assert explained["reasons"]
    (found,) = told(sync_db, "stats", "--json")
    assert found["scheduled"] == number
    told(sync_db, "stats")
    with sync_db.engine.connect() as connection:
        assert "unadopted-rows" not in {finding.code for finding in check(connection, Task)}


def test_stats_by(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove", "rose")
    found = told(sync_db, "stats", "--json", "--by", "symbol", target="Sign")
    assert {each["value"]: each["available"] for each in found} == {"rose": 2, "dove": 1}


def test_why_of_a_row_that_was_set_aside(db: Database) -> None:
    signs(db, "dove")
    with db.begin() as actor:
        assert actor.claim(Sign) is None
    with db.begin() as actor:
        explained = actor.why(_claim(1))
        (reason, *_) = explained.reasons
        assert reason.cause is Cause.NOT_DUE
        assert "it cannot be read: LookupError" in reason.text


def test_why_of_an_unknown_status(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "bogus"}])
    with db.begin() as actor:
        explained = actor.why(_claim(1, Task))
    assert explained.status == "bogus"
    assert [reason.cause for reason in explained.reasons] == [Cause.UNKNOWN_STATUS]
    assert "'bogus'" in str(explained)


def _claim(key: int, model: Any = Sign) -> Any:
    return Claim(model, (key,), 0)


def test_check_names_keys(sync_db: Database) -> None:
    signs(sync_db, "dove", "rose", "lion")

    def findings() -> list[str]:
        with sync_db.engine.connect() as connection:
            return [each.message for each in check(connection, Sign) if each.code == "unreadable-rows"]

    assert findings() == []
    with sync_db.begin() as actor:
        actor.claim_many(Sign, limit=9)
    assert findings() == ["sign has rows that cannot be read and are postponed, with these keys: 1; 3"]
    for _ in range(10):
        again(sync_db)
        with sync_db.begin() as actor:
            actor.claim_many(Sign, limit=9)
    assert {states(sync_db)[n] for n in (1, 3)} == {"discarded"}
    assert findings() == ["sign has rows that cannot be read and are dead letters, with these keys: 3; 1"]


def test_pages_of_the_dashboard(sync_db: Database) -> None:
    signs(sync_db, "rose", "dove", "rose")
    insert_odd_times(sync_db, "available_at", "scheduled")
    insert_odd_times(sync_db, "created_at", "available")
    sync_db.insert(Task, [{"id": 1_000, "status": "bogus"}])
    dashboard = Dashboard(
        sessionmaker(sync_db.engine),
        Base,
        authorize=lambda _: Viewer("ada", frozenset(Action)),
        columns={Sign: ["symbol"]},
    )
    paths = [
        "/",
        "/queue/sign",
        "/queue/task",
        "/queue/task?status=scheduled",
        "/queue/sign/task?key=2",
        *(f"/queue/task/task?key={key}" for key in states(sync_db, Task)),
    ]
    with TestClient(dashboard) as client:
        answers = {path: client.get(path) for path in paths}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    assert "cannot be read" in answers["/queue/sign"].text
    assert "cannot be read" in answers["/queue/sign/task?key=2"].text
