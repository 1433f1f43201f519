"""Rows that a call does not need are not read: of earlier pages, and of crashed, unknown and scheduled tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sqlqueue import Status
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.paging import page
from sqlqueue.operations.upkeep import exhausted
from tests.suite.reading import DUE, FEW, HOUR, MANY, READY, Call, efforts, growing, stored, to_be_found
from tests.support.harness import Database
from tests.support.models import Job, Task
from tests.support.polling import next_due
from tests.support.rows import PAST, TOMORROW, rows


@pytest.mark.parametrize("status", [Status.AVAILABLE, Status.SCHEDULED, None])
@pytest.mark.requires("statistics")
def test_a_page_costs_the_same_wherever_it_is(
    sync_db: Database, counted: Callable[[Any], None], status: Status | None
) -> None:
    stored(sync_db, Task, 0, [{"status": status or "available", "available_at": PAST}] * (2 * FEW))
    counted(Task)
    pages: list[Any] = []
    with sync_db.session() as session:
        pages += [session.run(page, Task, status=status, limit=2 * FEW - READY)]

    def turn(**place: Any) -> Call:
        return lambda session, model: pages.append(
            session.run(page, model, status=status, limit=10, scan=READY, **place)
        )

    calls = {"first": turn(), "next": turn(after=pages[0].next), "previous": turn(before=pages[0].next)}
    found = {name: read.amount for name, read in efforts(sync_db, Task, calls).items() if name in calls}
    assert [len(each.tasks) for each in pages[1:]] == [10, 10, 10]
    assert max(found.values()) < found["first"] + FEW // 2, found


@pytest.mark.requires("statistics")
def test_due_rows_are_not_read_for_crashed_tasks(sync_db: Database, counted: Callable[[Any], None]) -> None:
    if not adapter_for(sync_db.engine.dialect).schema.indexes_all:
        pytest.skip("no index has the running tasks but that of all which are due")
    calls: Mapping[str, Call] = {
        "exhausted": lambda session, model: session.run(exhausted, model, limit=READY),
        "rescue": lambda session, model: session.rescue(model, limit=READY),
    }
    # many crashed tasks after all due ones: an index scan by time looks cheap to a planner, but is not
    crashed = rows(2 * FEW, "expired", max_attempts=1, available_at=PAST + HOUR)
    stored(sync_db, Task, 0, crashed)
    stored(sync_db, Task, len(crashed), rows(READY))
    small = efforts(sync_db, Task, calls)
    stored(sync_db, Task, len(crashed) + READY, rows(MANY, "scheduled", "retryable"))
    assert growing(small, efforts(sync_db, Task, calls)) == {}, "with a planner that knows nothing"
    counted(Task)
    assert growing(small, efforts(sync_db, Task, calls)) == {}, "with a planner that knows the table"


@pytest.mark.requires("statistics")
def test_calls_of_unknown_functions_are_not_read(sync_db: Database, counted: Callable[[Any], None]) -> None:
    known = Job.task.in_(["a", "c"])
    calls: Mapping[str, Call] = {
        "claim ready calls": lambda session, model: session.claim_many(model, known, limit=READY),
        "claim due calls": lambda session, model: session.claim_many(model, known, limit=READY + DUE),
        "next_due": lambda session, model: session.run(next_due, model, known),
        "promote": lambda session, model: session.promote(model, known),
    }
    ways = ("ready", "scheduled", "retryable", "expired")
    unknown = calls_of("b", MANY, *ways, priority=-1)  # before all others in the order of claims
    for name in ("a", "c"):
        sync_db.insert(Job, calls_of(name, READY, "ready") + calls_of(name, DUE, *ways[1:]))
    sync_db.insert(Job, unknown[: 2 * FEW])  # some are read, as many as a call may take
    small = efforts(sync_db, Job, calls)
    sync_db.insert(Job, unknown)
    assert growing(small, efforts(sync_db, Job, calls)) == {}, "with a planner that knows nothing"
    counted(Job)
    assert growing(small, efforts(sync_db, Job, calls)) == {}, "with a planner that knows the table"


def calls_of(name: str, number: int, *conditions: str, **values: Any) -> list[dict[str, Any]]:
    made = (
        {column: row[column] for column in row if column in Job.__table__.columns} for row in rows(number, *conditions)
    )
    return [{**row, "task": name, "arguments": {}, "created_at": PAST, **values} for row in made]


@pytest.mark.parametrize(("others", "prepared"), [(MANY, False), (0, True)], ids=["large table", "kept plan"])
@pytest.mark.requires("statistics", "searched_sql", "generic_plans")
def test_large_claims_do_not_scan_the_table(
    sync_db: Database, counted: Callable[[Any], None], others: int, prepared: bool
) -> None:
    """To a planner, reading a table of this size looks cheaper than searching it for that many keys.

    A plan that is kept must not scan a small table either, since the table may grow.
    """
    calls: Mapping[str, Call] = {
        "claim": lambda session, model: session.claim_many(model, limit=FEW // 2),
        "consume": lambda session, model: session.consume_many(model, limit=FEW // 2),
        "settle": lambda session, model: session.complete(session.claim_many(model, limit=FEW // 2)),
    }
    stored(sync_db, Task, 0, [*rows(FEW), *[{"status": "scheduled", "available_at": TOMORROW}] * others])
    counted(Task)
    setting, driver = sync_db.case.generic_plans
    options = {"on_connect": setting, "connect_args": driver} if prepared else {}
    found = efforts(sync_db, Task, calls, **options)
    assert {name for name in calls if Task.__tablename__ in found[name].searched} == set()


@pytest.mark.parametrize("prepared", [False, True], ids=["replanned", "prepared"])
@pytest.mark.requires("searched_sql", "generic_plans")
def test_settling_does_not_read_scheduled_rows(crowded: Database, prepared: bool) -> None:
    setting, driver = crowded.case.generic_plans
    options = {"on_connect": setting, "connect_args": driver} if prepared else {}
    found = efforts(crowded, Task, {}, **options)
    others = {str(index.name) for index in Task.__table__.indexes}
    assert {name for name, read in found.items() if not others.isdisjoint(read.searched)} == set()


@pytest.fixture
def crowded(sync_db: Database) -> Database:
    """Fill a new table with scheduled tasks, without planner statistics."""
    Task.__table__.drop(sync_db.engine)
    Task.__table__.create(sync_db.engine)
    sync_db.insert(Task, [{"status": "scheduled", "available_at": TOMORROW}] * MANY)
    to_be_found(sync_db, Task, start=MANY)
    return sync_db
