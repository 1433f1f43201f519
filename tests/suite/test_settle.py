"""Every way to settle a claim, and its effect on each column."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, inspect, select

from sqlqueue import Every, IllegalTransitionError, QueueSession, claim_of
from sqlqueue.model.declaration import COLUMNS
from sqlqueue.queue.spec import spec_of
from tests.suite.settlements import SETTLINGS, VARIANTS
from tests.support.harness import Database
from tests.support.models import Film, Listing, Order, Report, Spool, Task, Visit
from tests.support.rows import PAST, clock, load, load_all, row
from tests.support.workers import seen


def columns(task: Any) -> dict[str, Any]:
    attributes = task.__queue_spec__.attributes
    return {role: getattr(task, attributes[role]) for role in COLUMNS}


def test_each_settlement_changes_its_columns(db: Database) -> None:
    for number, settling in enumerate(VARIANTS, start=1):
        db.insert(Task, [{"id": number, "available_at": PAST, "priority": 2}])
        task = db.committed.claim(Task, Task.id == number, claimed_by="me")
        before, started = columns(load(db, Task, number)), clock(db)
        assert getattr(db.committed, settling.name)(task, *settling.arguments) is None
        after, ended = columns(load(db, Task, number)), clock(db)
        moment = after.pop("available_at")
        assert started + settling.after <= moment <= ended + settling.after, settling
        assert after.pop("finished_at") == (moment if settling.final else None), settling
        del before["available_at"], before["finished_at"]
        assert after == before | settling.changes, settling


def test_renamed_columns(db: Database) -> None:
    db.insert(Order, [{"id": n, "status": "paid"} for n in range(1, len(VARIANTS) + 1)])
    with db.begin() as session:
        for settling in VARIANTS:
            settling(session, session.claim(Order))
    for stored, settling in zip(load_all(db, Order), VARIANTS, strict=True):
        assert (stored.status, stored.queue_status) == ("paid", settling.changes.get("status", "running"))
        assert stored.created_at is None


def test_one_failure_of_several_attempts(db: Database) -> None:
    db.insert(Task, [{"id": n, "status": "retryable", "attempt": n - 1, "available_at": PAST} for n in (1, 2, 3)])
    with db.begin() as session:
        session.fail(session.claim_many(Task, limit=3), "no")
    tasks = [load(db, Task, n) for n in (1, 2, 3)]
    assert [task.status for task in tasks] == ["retryable", "retryable", "discarded"]
    assert tasks[1].available_at - tasks[0].available_at == timedelta(seconds=20)


def test_handed_back_without_counting_the_attempt(db: Database) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": 1}])
    for attempt in (1, 2, 3):
        with db.begin() as session:
            task = session.claim(Task)
            assert task.attempt == attempt
            session.snooze(task, timedelta(0)) if attempt % 2 else session.release(task)
    assert load(db, Task, 1).max_attempts == 4
    with db.begin() as session:
        session.fail(session.claim(Task), "the first that counts")
    assert load(db, Task, 1).status == "discarded"


def test_delete_on_complete(db: Database) -> None:
    db.insert(Spool, [{"id": n} for n in (1, 2, 3)])
    with db.begin() as session:
        tasks = session.claim_many(Spool, limit=3)
        session.complete(tasks[0])
        session.complete([tasks[1], claim_of(tasks[2])])
        assert inspect(tasks[0]).detached
        assert session.scalars(select(Spool)).all() == []


def test_instances_show_what_was_done(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        task.name = "not flushed yet"
        session.complete(task)
        session.refresh(task)
        assert (task.status, task.name) == ("completed", "not flushed yet")


def test_an_iterable_of_instances_or_claims(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=5)
        session.complete(task for task in tasks[:2])
        session.complete(claim_of(task) for task in tasks[2:4])
        session.complete([])
    assert [load(db, Task, task.id).status for task in tasks] == ["completed"] * 4 + ["running"]


def test_a_claim_that_is_settled_already_is_refused(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        held = claim_of(session.claim(Task))
        session.complete(held)
        with pytest.raises(IllegalTransitionError, match="Task 1 is already settled: completed"):
            session.complete(held)


def test_several_claims_are_settled_by_one_statement(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": n} for n in range(1, 41)])
    tasks = sync_db.committed.claim_many(Task, limit=40)
    with seen(sync_db, "before_cursor_execute") as sent:
        sync_db.committed.complete(tasks)
    assert len([statement for _, _, statement, *_ in sent if statement.startswith("UPDATE")]) == 1


def test_settling_keeps_unwritten_attributes_loaded(db: Database) -> None:
    # with asyncio, an expired attribute cannot be read
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        session.heartbeat(task)
        assert (task.status, task.attempt, task.name) == ("running", 1, "")
        session.complete(task)
        assert (task.attempt, task.priority) == (1, 0)


# -- what an instance shows after its row was written -----------------------------------------------------------------

TIMES = {"available_at", "finished_at", "claimed_at", "scheduled_for"}
SETTLE = {**SETTLINGS, "fail for good": SETTLINGS["fail"]}
ROWS: dict[Any, dict[str, Any]] = {
    Task: {"error": "before"},
    Listing: {"unique_key": "a"},
    Film: {"unique_key": "a", "stage": "print"},
    Report: {"schedule": str(Every(timedelta(hours=1))), "status": "scheduled", "available_at": PAST},
    Visit: {"limit_key": "k"},
}
NEVER = {"complete": (Film, Report), "fail for good": (Report,)}
"""Where only the database knows what becomes of the task."""


def shown(task: Any, *, but: set[str] = TIMES) -> dict[str, Any]:
    return {role: getattr(task, name) for role, name in spec_of(type(task)).attributes.items() if role not in but}


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("model", ROWS)
def test_a_settled_instance_shows_what_is_stored(db: Database, model: Any, lease: Any) -> None:
    for number, how in enumerate(SETTLE, start=1):
        if lease is None and how == "heartbeat":
            continue  # there is no lease to extend
        db.insert(model, [{"id": number, "max_attempts": 1 if how == "fail for good" else 5, **ROWS[model]}])
        with db.begin() as actor:
            task = actor.claim(model, model.id == number, lease=lease)
            SETTLE[how](actor, task)
            values = None if model in NEVER.get(how, ()) else shown(task)
        if values is not None:
            stored = row(db, task)
            assert values == {role: stored[spec_of(model).columns[role]] for role in values}, how
        db.committed.run(lambda session: session.execute(delete(model)))


@pytest.mark.parametrize("lease", ["default", None])
def test_each_of_many_settled_instances_shows_what_is_stored(db: Database, lease: Any) -> None:
    """What they show depends on their attempts, on how many are left, and on their keys."""
    attempts = [(0, 1), (0, 2), (1, 2), (4, 5), (4, 9)]
    for how in ("fail", "release", "complete"):
        keyed = [
            {"id": number, "attempt": attempt, "max_attempts": most, "unique_key": f"key {number}"}
            for number, (attempt, most) in enumerate(attempts, start=1)
        ]
        db.execute(delete(Listing))
        db.insert(Listing, keyed)
        with db.begin() as actor:
            tasks = actor.claim_many(Listing, limit=len(attempts), lease=lease)
            SETTLE[how](actor, tasks)
            values = [shown(task) for task in tasks]
        for task, each in zip(tasks, values, strict=True):
            stored = row(db, task)
            assert each == {role: stored[spec_of(Listing).columns[role]] for role in each}, how


@pytest.mark.parametrize("how", ["retry", "cancel", "discard", "run_now", "rerun"])
def test_instances_show_what_a_change_of_many_has_written(db: Database, how: str) -> None:
    status = {"run_now": "scheduled", "retry": "discarded", "rerun": "completed"}.get(how, "available")
    ended = {"finished_at": PAST} if status in ("discarded", "completed") else {}
    db.insert(Task, [{"id": n, "number": n, "status": status, "available_at": PAST, **ended} for n in (1, 2)])
    with db.begin() as actor:
        changed, other = actor.find(Task)
        how_ = getattr(actor, how)
        assert how_(Task, Task.number == 1, **({"error": "no"} if how == "discard" else {})) == 1
        assert (changed.status, other.status) == (
            {"cancel": "cancelled", "discard": "discarded"}.get(how, "available"),
            status,
        )
        assert changed.available_at > PAST
        assert (changed.error, other.error) == ("no" if how == "discard" else None, None)


def test_a_settlement_reads_nothing(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}])
    statements: list[str] = []
    with QueueSession(sync_db.session_engine) as session:
        task = session.claim(Task)
        session.complete(task)
        event.listen(session, "do_orm_execute", lambda state: statements.append(str(state.statement)))
        assert (task.status, task.attempt, task.error) == ("completed", 1, None)  # type: ignore[union-attr]
        session.rollback()
        assert statements == []
        assert task.status == "available"  # type: ignore[union-attr]


# -- any text of an error can be stored -------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Odd(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 - that is the point


TEXTS = [
    (ValueError("no"), "ValueError: no"),
    (ValueError(), "ValueError"),
    (KeyError("key"), "KeyError: 'key'"),
    (ValueError("two\nlines\ttab"), "ValueError: two\nlines\ttab"),
    ('it\'s a "quoted" 100% \\ text :name %(name)s ?', 'it\'s a "quoted" 100% \\ text :name %(name)s ?'),
    ("Ünïcödé 漢字 🙈🏴\u200d☠", "Ünïcödé 漢字 🙈🏴\u200d☠"),
    ("a\0b", "a\\x00b"),
    ("half \ud83d of it", "half \\ud83d of it"),
    (Mute(), "Mute: (its message is not available)"),
    (Odd(), "Odd: (its message is not available)"),
    (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: bad",
    ),
    ("x" * 2000, "x" * 2000),
]


@pytest.mark.parametrize("by", ["fail", "discard"])
def test_text_is_stored_as_completely_as_possible(db: Database, by: str) -> None:
    assert stored(db, by, [error for error, _ in TEXTS]) == [text for _, text in TEXTS]


@pytest.mark.parametrize("by", ["fail", "discard"])
def test_a_long_error_is_truncated(db: Database, by: str) -> None:
    spelled = {"x": "x", "ü": "ü", "漢": "漢", "🙈": "🙈", "\0": "\\x00", "\udcff": "\\udcff"}
    for text, start in zip(stored(db, by, [each * 5000 for each in spelled]), spelled.values(), strict=True):
        assert text.endswith("…")
        assert text[:40] == (start * 40)[:40]
        assert 990 < len(text) <= 2000
        assert len(text.encode("utf-16-le")) <= 2 * 2000, "SQL Server and Oracle count a column's length in UTF-16"


def stored(db: Database, by: str, errors: Sequence[BaseException | str]) -> list[Any]:
    db.insert(Task, [{"id": n} for n in range(1, len(errors) + 1)])
    with db.begin() as session:
        for error in errors:
            getattr(session, by)(session.claim(Task), error)
    tasks = load_all(db, Task)
    assert {task.status for task in tasks} == {"retryable" if by == "fail" else "discarded"}
    return [task.error for task in tasks]


def test_a_long_error_in_a_block(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session, session.claiming(Task):
        raise ValueError("🙈\0\ud83d" * 3000)
    assert load(db, Task, 1).status == "retryable"


def test_the_codec_is_loaded_with_the_library() -> None:
    """A process without free file descriptors cannot load it when an error occurs."""
    subprocess.run(
        [sys.executable, "-c", "import sqlqueue, sys; assert 'encodings.utf_16_le' in sys.modules"], check=True
    )
