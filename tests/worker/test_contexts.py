"""Context variables that a handler sets, such as its tenant, do not reach other calls."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.workers import Workers, all_are, eventually

tenant: ContextVar[str] = ContextVar("tenant", default="")
ROWS = [{"id": n, "name": f"tenant {n}" if n % 2 else ""} for n in range(1, 7)]


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_call_does_not_see_what_another_has_set(db: Database, workers: Workers, mode: Any, session: bool) -> None:
    if mode == "lock" and not session:
        pytest.skip("mode='lock' passes a session")
    db.insert(Task, ROWS)
    seen: dict[int, str] = {}

    def call(*arguments: Any) -> None:
        task = arguments[-1]
        if task.name:
            tenant.set(task.name)
        seen[task.id] = tenant.get()

    async def coroutine(*arguments: Any) -> None:
        call(*arguments)

    worker = workers.make()
    if session:

        async def coroutine_with_session(session: Any, task: Any) -> None:
            call(session, task)

        def function_with_session(session: Any, task: Any) -> None:
            call(session, task)

        handler: Any = coroutine_with_session if db.is_async else function_with_session
    else:

        async def coroutine_without(task: Any) -> None:
            call(task)

        def function_without(task: Any) -> None:
            call(task)

        handler = coroutine_without if db.is_async else function_without
    worker.handler(Task, mode=mode, concurrency=1)(handler)
    workers.start(worker)
    eventually(all_are(db, "completed"))
    assert seen == {row["id"]: row["name"] for row in ROWS}


@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_the_events_of_a_session_see_what_its_call_has_set(db: Database, workers: Workers, mode: Any) -> None:
    """The session flushes and commits after the handler has returned."""
    db.insert(Task, ROWS)
    seen: set[tuple[int, str]] = set()

    def note(session: Session, *_: Any) -> None:
        seen.update((each.task_id, tenant.get()) for each in session.new if isinstance(each, Ledger))

    def set_tenant(session: Any, task: Any) -> None:
        if task.name:
            tenant.set(task.name)
        session.add(Ledger(task_id=task.id, worker="worker"))

    async def coroutine(session: Any, task: Any) -> None:
        set_tenant(session, task)

    worker = workers.make()
    worker.handler(Task, mode=mode, concurrency=1)(coroutine if db.is_async else set_tenant)
    event.listen(Session, "before_flush", note)
    try:
        workers.start(worker)
        eventually(all_are(db, "completed"))
    finally:
        event.remove(Session, "before_flush", note)
    assert seen == {(row["id"], row["name"]) for row in ROWS}
