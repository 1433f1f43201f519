"""The operator commands, on every engine."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.cli.invoking import called, told, words
from tests.support.harness import Database
from tests.support.models import Listing, Mail, Parcel, Seat, Task, Visit
from tests.support.rows import PAST, TOMORROW, clock

pytestmark = pytest.mark.one_engine  # except for what depends on the engine's SQL or driver
FAILED = {"status": "discarded", "attempt": 3, "available_at": PAST, "claimed_at": PAST, "finished_at": PAST}
ABANDONED = {"status": "running", "attempt": 1, "claimed_at": PAST, "available_at": PAST}


def states(db: Database, model: Any = Task) -> dict[Any, str]:
    with db.begin() as session:
        return {model.__queue_spec__.identity_of(task): task.status for task in session.find(model)}


@pytest.mark.every_engine
def test_stats(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1, **ABANDONED}])
    sync_db.insert(Task, [{"id": 2, **FAILED}])
    with sync_db.begin() as session:
        session.pause(Mail, "news", paused_by="ada")
    by_table = {each["queue"]: each for each in told(sync_db, "stats", "--json", target="Base")}
    task, mail = by_table["task"], by_table["mail"]
    assert task["model"] == f"{Task.__module__}.Task"
    assert (task["running"], task["abandoned"], task["discarded"]) == (1, 1, 1)
    assert (task["total"], task["unfinished"], task["paused"]) == (2, 1, [])
    assert task["oldest_running"] > 3600
    assert (mail["total"], mail["paused"][0]["topic"], mail["paused"][0]["paused_by"]) == (0, "news", "ada")
    assert datetime.fromisoformat(mail["paused"][0]["paused_at"]).tzinfo is not None
    assert told(sync_db, "stats", "--json", "--queue", "mail", target="Base", driver="async_driver") == [mail]


def test_stats_show_rows_with_an_unknown_status(sync_db: Database) -> None:
    sync_db.insert(Task, [{"status": "pending"}, {"status": "pending"}])
    assert "task: 2 rows have the status 'pending', which sqlqueue does not know" in words(told(sync_db, "stats"))
    (found,) = told(sync_db, "stats", "--json")
    assert (found["unknown"], found["total"]) == ({"pending": 2}, 0)


@pytest.mark.every_engine
def test_stats_of_now_and_over_time(sync_db: Database) -> None:
    ended = clock(sync_db)
    took = {"claimed_at": ended - timedelta(seconds=3), "created_at": ended - timedelta(seconds=8)}
    sync_db.insert(Mail, [{"status": "completed", "finished_at": ended, "available_at": ended, **took}])
    others = ("discarded", "cancelled", "cancelled")
    sync_db.insert(Mail, [{"status": each, "finished_at": ended, "available_at": ended} for each in others])
    sync_db.insert(Mail, [{"topic": "news", "available_at": ended - timedelta(hours=1)}])
    (now,) = told(sync_db, "stats", "--json", target="Mail")
    assert (now["claimable"], now["overdue"], now["oldest_running"]) == (1, 0, None)
    assert (now["finished_last_minute"], now["finished_last_hour"]) == (4, 4)
    assert 3600 <= now["oldest_claimable"] < 3700
    default, news = told(sync_db, "stats", "--json", "--by", "topic", target="Mail")
    assert (default["value"], default["completed"], news["value"], news["unfinished"]) == ("default", 1, "news", 1)
    timeline = ("--timeline", "--bucket", "15m", "--since", "1h", "--json")
    (bucket,) = [each for each in told(sync_db, "stats", *timeline, target="Mail") if each["completed"]]
    assert timedelta(0) <= ended - datetime.fromisoformat(bucket["start"]) < timedelta(minutes=15)
    assert (bucket["failed"], bucket["cancelled"]) == (1, 2)
    assert bucket["run_time"] == {"count": 1, "mean": 3, "p50": 3, "p95": 3}
    assert bucket["waiting_time"] == {"count": 1, "mean": 5, "p50": 5, "p95": 5}
    assert len(told(sync_db, "stats", *timeline, "--topic", "news", target="Mail")) == 5


@pytest.mark.every_engine
def test_errors_and_an_example(sync_db: Database) -> None:
    sync_db.insert(Seat, [{"line": "a", "number": n, "error": "Timeout: x", **FAILED} for n in (1, 2)])
    (group,) = told(sync_db, "errors", "--json", "--status", "discarded", target="Seat")
    assert (group["message"], group["tasks"], group["example"]) == ("Timeout: x", 2, "a,2")
    seat = told(sync_db, "show", group["example"], "--json", target="Seat")
    assert (seat["queue"], seat["key"], seat["columns"]) == ("seat", "a,2", {"line": "a", "number": 2})
    assert (seat["status"], seat["attempt"], seat["error"]) == ("discarded", 3, "Timeout: x")
    assert datetime.fromisoformat(seat["claimed_at"]) == PAST
    assert told(sync_db, "errors", "--json", "--status", "retryable", target="Seat") == []


FILTERS: list[tuple[list[str], list[str]]] = [
    ([], ["5", "4", "3", "2", "1"]),
    (["--status", "discarded", "--status", "running"], ["3", "2", "1"]),
    (["--error", "Timeout%"], ["1"]),
    (["--topic", "news"], ["5", "2"]),
    (["--id", "4", "--id", "2"], ["4", "2"]),
    (["--older-than", "1h30m"], ["1"]),
    (["--where", "subject=x", "--where", "priority=0"], ["4"]),
    (["--abandoned"], ["3"]),
    (["--status", "discarded", "--topic", "news"], ["2"]),
    (["--order-by", "id", "--limit", "2"], ["1", "2"]),
    (["--order-by=-topic", "--order-by", "id"], ["2", "5", "1", "3", "4"]),
]


@pytest.mark.every_engine
def test_filters(sync_db: Database) -> None:
    sync_db.insert(Mail, [{"id": 1, "error": "Timeout: x", "created_at": PAST, **FAILED}])
    sync_db.insert(Mail, [{"id": 2, "error": "KeyError: x", "topic": "news", **FAILED}])
    sync_db.insert(Mail, [{"id": 3, **ABANDONED}])
    sync_db.insert(Mail, [{"id": 4, "subject": "x"}])
    sync_db.insert(Mail, [{"id": 5, "topic": "news"}])
    for filters, found in FILTERS:
        keys = [each["key"] for each in told(sync_db, "list", "--json", *filters, target="Mail")]
        assert (filters, keys) == (filters, found)


def test_retry_some_and_then_all(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": n, "error": "x" * n, **FAILED} for n in (1, 2, 3)])
    assert told(sync_db, "retry", "--id", "2") == "1 task of task is available again.\n"
    assert told(sync_db, "retry", "--error", "y%") == "0 tasks of task are available again.\n"
    changed = {"tasks": 2, "taken": 0, "stopped": False}
    assert told(sync_db, "retry", "--yes", "--json") == {"queue": "task", "action": "retry", **changed}
    assert set(states(sync_db).values()) == {"available"}


def test_rerun_some_and_then_all(sync_db: Database) -> None:
    ended = {"finished_at": PAST, "available_at": PAST}
    for number, status in enumerate(("completed", "cancelled", "discarded", "retryable"), 1):
        sync_db.insert(Task, [{"id": number, "status": status, **(ended if number < 4 else {})}])
    assert told(sync_db, "rerun", "--id", "2") == "1 task of task is made to run again.\n"
    changed = {"tasks": 2, "taken": 0, "stopped": False}
    assert told(sync_db, "rerun", "--yes", "--json") == {"queue": "task", "action": "rerun", **changed}
    assert states(sync_db) == {(1,): "available", (2,): "available", (3,): "available", (4,): "retryable"}


def test_cancel_and_discard(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": n, "number": n % 2} for n in range(1, 5)])
    assert told(sync_db, "cancel", "--yes", "--where", "number=0") == "2 tasks of task are cancelled.\n"
    assert told(sync_db, "discard", "--yes", "--reason", "a mistake") == "2 tasks of task are discarded.\n"
    assert states(sync_db) == {(1,): "discarded", (2,): "cancelled", (3,): "discarded", (4,): "cancelled"}
    (group,) = told(sync_db, "errors", "--json")
    assert (group["message"], group["tasks"]) == ("a mistake", 2)


def test_tasks_with_a_taken_key_are_counted(sync_db: Database) -> None:
    sync_db.insert(Listing, [{**FAILED, "former_key": key} for key in "abcde"])
    sync_db.insert(Listing, [{"unique_key": "c"}])
    told_ = told(sync_db, "retry", "--yes", target="Listing")
    assert (
        told_
        == "4 tasks of listing are available again.\n1 could not be changed: another task has the same unique_key.\n"
    )


@pytest.mark.every_engine
@pytest.mark.parametrize("driver", ["sync_driver", "async_driver"])
@pytest.mark.parametrize(("presses", "done"), [(1, 4), (2, 2)])
def test_ctrl_c_stops_the_command(
    sync_db: Database, driver: str, presses: int, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one Ctrl-C, the second batch is the last; after two, it is rolled back."""
    monkeypatch.setattr("sqlqueue.operations.reactivating.BATCH", 2)
    sync_db.insert(Task, [{"id": n} for n in range(1, 8)])
    updates = 0

    def press(*sent: Any) -> None:
        nonlocal updates
        updates += sent[2].startswith("UPDATE")
        if updates == 2 and sent[2].startswith("UPDATE"):
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)

    event.listen(Engine, "after_cursor_execute", press)
    try:
        stopped = called(sync_db, "cancel", "--yes", driver=driver)
    finally:
        event.remove(Engine, "after_cursor_execute", press)
    assert stopped.exit_code == 130
    assert stopped.stdout == f"{done} tasks of task are cancelled.\n"
    assert stopped.stderr.startswith("Stopped.")
    assert list(states(sync_db).values()).count("cancelled") == done
    assert told(sync_db, "cancel", "--yes", driver=driver) == f"{7 - done} tasks of task are cancelled.\n"


def test_prune(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": n, **FAILED} for n in range(1, 6)])
    sync_db.insert(Task, [{"id": 6, **FAILED, "finished_at": TOMORROW}])
    sync_db.insert(Task, [{"id": 7}])
    assert told(sync_db, "prune", "--older-than", "1d", "--yes", "--limit", "2") == "2 tasks of task are deleted.\n"
    assert told(sync_db, "prune", "--older-than", "1d", "--yes", "--json")["tasks"] == 3
    assert set(states(sync_db)) == {(6,), (7,)}


@pytest.mark.every_engine
def test_keys_of_other_types(sync_db: Database) -> None:
    with sync_db.begin() as session:
        parcel = Parcel(name="x")
        session.add(parcel)
        session.flush()
        key = str(parcel.id)
    assert told(sync_db, "show", key, "--json", target="Parcel")["columns"] == {"id": key, "name": "x"}
    assert told(sync_db, "cancel", "--id", key, target="Parcel") == "1 task of parcel is cancelled.\n"


def test_pause_and_resume(sync_db: Database) -> None:
    arguments = ("--json", "--topic", "news")
    paused = told(sync_db, "pause", *arguments, "--reason", "x", "--by", "ada", target="Mail")
    assert (paused["queue"], paused["topic"], paused["changed"]) == ("mail", "news", True)
    assert [(each["topic"], each["paused_by"], each["reason"]) for each in paused["paused"]] == [("news", "ada", "x")]
    assert told(sync_db, "pause", *arguments, target="Mail")["changed"] is False
    resumed = told(sync_db, "resume", *arguments, target="Mail")
    assert resumed == {"queue": "mail", "topic": "news", "key": None, "changed": True, "paused": []}
    assert told(sync_db, "resume", *arguments, target="Mail")["changed"] is False


def test_limits(sync_db: Database) -> None:
    sync_db.insert(Visit, [{"limit_key": key} for key in ("a.org", "a.org", "b.org")])
    with sync_db.begin() as session:
        assert len(session.claim_many(Visit, limit=3)) == 3
    changed = told(sync_db, "set-limit", "a.org", "1", "--json", target="Visit")
    unrated = {"starts": None, "per": None, "started": 0, "next_start": None}
    assert changed == {"queue": "visit", "key": "a.org", "limit": 1, "before": 2, "running": 2, **unrated}
    assert told(sync_db, "limits", "--json", target="Visit") == [
        {"queue": "visit", "key": "a.org", "limit": 1, "running": 2, **unrated},
        {"queue": "visit", "key": "b.org", "limit": 2, "running": 1, **unrated},
    ]
    with sync_db.begin() as session:
        assert [(each.key, each.limit) for each in session.limits(Visit)] == [("a.org", 1), ("b.org", 2)]
    rated = told(sync_db, "set-rate", "a.org", "100", "--per", "1m", "--json", target="Visit")
    assert {**rated, "before": 2} == {**changed, "starts": 100, "per": 60.0}


def test_keys(sync_db: Database) -> None:
    sync_db.insert(Visit, [{"limit_key": key} for key in ("a.org", "a.org", "a.org", "b.org", None)])
    with sync_db.begin() as session:
        session.claim_many(Visit, Visit.limit_key == "a.org", limit=2)
    paused = told(sync_db, "pause", "--key", "b.org", "--json", target="Visit")
    assert (paused["key"], paused["changed"], [each["key"] for each in paused["paused"]]) == ("b.org", True, ["b.org"])
    without_rate = {"rate": None, "started": 0, "next_start": None}
    same = {"queue": "visit", "ready": 1, "weight": None, "blocked_by": None, **without_rate}
    free = {**same, "key": None, "running": 0, "limit": None, "paused": False}
    stopped = {**same, "key": "b.org", "running": 0, "limit": 2, "paused": True}
    assert told(sync_db, "keys", "--json", target="Visit") == [
        {**same, "key": "a.org", "running": 2, "limit": 2, "paused": False},
        stopped,
        free,
    ]
    assert told(sync_db, "keys", "--json", "--after", "a.org", "--limit", "1", target="Visit") == [stopped]
    assert told(sync_db, "resume", "--key", "b.org", "--json", target="Visit")["changed"] is True


def test_why(sync_db: Database) -> None:
    sync_db.insert(Visit, [{"id": n, "limit_key": "a", "available_at": PAST} for n in (1, 2, 3)])
    with sync_db.begin() as session:
        session.claim_many(Visit, limit=2, claimed_by="worker-1")
    found = told(sync_db, "why", "3", "--json", target="Visit")
    (reason,) = found["reasons"]
    assert (found["queue"], found["key"], found["status"], reason["cause"]) == ("visit", "3", "available", "limit")
    assert [(holder["key"], holder["worker"]) for holder in reason["holders"]] == [("1", "worker-1"), ("2", "worker-1")]
    assert datetime.fromisoformat(reason["holders"][0]["since"]).tzinfo is not None
    assert "2 of at most 2 tasks with its key 'a' are running" in told(sync_db, "why", "3", target="Visit")
    missing = told(sync_db, "why", "9", "--json", target="Visit")
    assert (missing["status"], [each["cause"] for each in missing["reasons"]]) == (None, ["missing"])
    assert called(sync_db, "why", "x", target="Visit").exit_code == 2
