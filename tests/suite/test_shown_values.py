"""What an instance shows after its row was written: the new values, also with asyncio, which loads nothing lazily."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select

from sqlqueue import Every, QueueSession
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Actor, Database
from tests.support.models import Film, Listing, Report, Task, Visit
from tests.support.rows import PAST

TIMES = {"available_at", "finished_at", "claimed_at", "scheduled_for"}
SETTLE: dict[str, Callable[[Actor, Any], Any]] = {
    "complete": lambda actor, task: actor.complete(task),
    "fail": lambda actor, task: actor.fail(task, "no"),
    "fail for good": lambda actor, task: actor.fail(task, "no"),
    "discard": lambda actor, task: actor.discard(task, "no"),
    "cancel": lambda actor, task: actor.cancel(task),
    "release": lambda actor, task: actor.release(task),
    "snooze": lambda actor, task: actor.snooze(task, timedelta(hours=1)),
    "heartbeat": lambda actor, task: actor.heartbeat(task),
}
ROWS: dict[Any, dict[str, Any]] = {
    Task: {"error": "before"},
    Listing: {"unique_key": "a"},
    Film: {"unique_key": "a", "stage": "print"},
    Report: {"schedule": str(Every(timedelta(hours=1))), "status": "scheduled", "available_at": PAST},
    Visit: {"limit_key": "k"},
}
NEVER = {"complete": (Film, Report), "fail for good": (Report,)}
"""Where only the database knows what becomes of the task."""


def stored(db: Database, model: Any) -> dict[str, Any]:
    with db.engine.connect() as connection:
        row: Any = connection.execute(select(model.__table__)).mappings().one()
    return {role: row[column] for role, column in spec_of(model).columns.items()}


def shown(task: Any, *, but: set[str] = TIMES) -> dict[str, Any]:
    return {role: getattr(task, name) for role, name in spec_of(type(task)).attributes.items() if role not in but}


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("model", ROWS)
@pytest.mark.parametrize("how", SETTLE)
def test_a_settled_instance_shows_what_is_stored(db: Database, how: str, model: Any, lease: Any) -> None:
    if lease is None and how == "heartbeat":
        return  # there is no lease to extend
    db.insert(model, [{"id": 1, "max_attempts": 1 if how == "fail for good" else 5, **ROWS[model]}])
    with db.begin() as actor:
        task = actor.claim(model, lease=lease)
        SETTLE[how](actor, task)
        values = None if model in NEVER.get(how, ()) else shown(task)
    if values is not None:
        expected = stored(db, model)
        assert values == {role: expected[role] for role in values}


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
