"""The number of rows that a call reads does not grow with the table, with or without planner statistics."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, inspect, select, text

from sqlqueue import AttemptOutcome, Claim, Status, in_error_group
from sqlqueue._support.texts import error_group
from sqlqueue.diagnostics.drift import unserved_claims
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.history import count_old_attempts
from sqlqueue.operations.latches import Latches
from sqlqueue.operations.paging import Sorting, page
from sqlqueue.operations.upkeep import exhausted
from sqlqueue.queue.options import FAILED
from sqlqueue.sql import NEVER
from tests.support import history
from tests.support.engines import EngineCase
from tests.support.flows import Latch, Page, sync_flow
from tests.support.harness import Actor, Database
from tests.support.history import Past, sync_archive
from tests.support.models import Job, Mail, Parcel, Seat, Task
from tests.support.polling import next_due
from tests.support.rows import PAST, TOMORROW, clock, insert_many, rows

READY, DUE, DEAD, OLD, FAILING = 100, 60, 20, 60, 40
"""Tasks that calls look for."""
SLACK = 10 * READY
"""Reads that are tolerated, since a small table may be scanned where a large one is searched by key."""
FACTOR = 3
"""The tolerated factor: index trees get deeper, and rolled-back rows may remain for a while."""
FEW, MANY = 1_000, 10_000
"""The numbers of tasks that calls must not read: finished ones, and as many scheduled ones."""
Call = Callable[[Actor, Any], Any]
HOUR = timedelta(hours=1)
SETTLE: Mapping[str, Call] = {
    "complete many": lambda session, tasks: session.complete(tasks),
    "complete one": lambda session, tasks: session.complete(tasks[0]),
    "fail many": lambda session, tasks: session.fail(tasks, "no"),
    "release many": lambda session, tasks: session.release(tasks),
    "heartbeat many": lambda session, tasks: session.heartbeat(tasks),
}


def key_of(model: Any, number: int) -> tuple[Any, ...]:
    """Return the keys of any model, in the order of their numbers."""
    return {Mail: (number + 1,), Task: (number + 1,), Parcel: (uuid.UUID(int=number),), Seat: ("a", number)}[model]


def stored(db: Database, model: Any, start: int, given: list[dict[str, Any]]) -> None:
    names = [column.name for column in model.__queue_spec__.primary_key]
    common: dict[str, Any] = {"attempt": 0, "max_attempts": 5, "claimed_at": None, "finished_at": None}
    common |= {"created_at": PAST}  # without Python defaults to call, a driver sends many rows at once
    common |= {"topic": "a"} if model is Mail else {}
    keys = (dict(zip(names, key_of(model, number), strict=True)) for number in count(start))
    db.insert(model, [{**common, **each, **key} for each, key in zip(given, keys, strict=False)])


def to_be_found(db: Database, model: Any, start: int = 0) -> int:
    """Insert the rows that the calls find, and return their number."""
    found = [
        *rows(READY),
        *rows(DUE, "scheduled", "retryable", "expired"),
        *rows(DEAD, "expired", max_attempts=1),
        *[{"status": "completed", "available_at": PAST, "finished_at": PAST}] * OLD,
        *failing(FAILING, "no"),
    ]
    stored(db, model, start, found)
    return len(found)


@dataclass
class Read:
    amount: int = 0
    searched: frozenset[str] = frozenset()
    """The indexes used, and the tables scanned, if the engine reports them."""


@contextmanager
def reading(session: Actor, case: EngineCase) -> Iterator[Read]:
    """Measure what is read within the block."""
    read = Read()
    connection: Connection = session.run(lambda inner: inner.connection())
    if case.tells_steps:
        with steps(connection, read):
            yield read
        return
    said = text(str(case.reads_sql))
    before, own = (int(connection.scalar(said) or 0) for _ in range(2))
    already = searches(connection, case)
    yield read
    read.searched = frozenset(searches(connection, case) - already)
    read.amount = int(connection.scalar(said) or 0) - own - (own - before)


def median_read(other: Database, model: Any, size: int, times: int = 9) -> int:
    """Return the median of what some claims read that find `size` tasks each, and are rolled back."""
    amounts = []
    for _ in range(times):
        with other.session() as session, reading(session, other.case) as read:
            assert len(session.claim_many(model, limit=size)) == size
        amounts.append(read.amount)
    return sorted(amounts)[times // 2]


@contextmanager
def steps(connection: Connection, read: Read) -> Iterator[None]:
    def step() -> None:
        read.amount += 1

    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(step, 1)
    yield
    driver.set_progress_handler(None, 1)


def searches(connection: Connection, case: EngineCase) -> Counter[str]:
    found = connection.execute(text(case.searched_sql)) if case.searched_sql else ()
    return Counter({name: int(number) for name, number in found})


def efforts(
    db: Database, model: Any, calls: Mapping[str, Call], *, settles: bool = True, engine: Database | None = None
) -> dict[str, Read]:
    """Return how much each call and each settlement reads; everything is rolled back."""
    other = engine or db.read_committed
    found: dict[str, Read] = {}
    for name, call in calls.items():
        with other.session() as session, reading(session, db.case) as found[name]:
            call(session, model)
    for name, call in SETTLE.items() if settles else ():
        with other.session() as session:
            tasks = session.claim_many(model, limit=READY)
            with reading(session, db.case) as found[name]:
                call(session, tasks)
    return found


def growing(small: Mapping[str, Read], large: Mapping[str, Read]) -> dict[str, tuple[int, int]]:
    """Return the calls that read more from the larger table, and how much."""
    amounts = {name: (read.amount, large[name].amount) for name, read in small.items()}
    return {name: (less, more) for name, (less, more) in amounts.items() if more > FACTOR * less + SLACK}


@pytest.fixture
def counted(sync_db: Database) -> Iterator[Callable[[Any], None]]:
    """Return a function that collects the planner's statistics of a table, which the server does not do meanwhile."""
    tables: list[str] = []
    by_itself = "ALTER TABLE {table} SET (autovacuum_enabled = %s)" if sync_db.case.storage_parameters else ""
    every = inspect(sync_db.engine).get_table_names()

    def count_rows(model: Any) -> None:
        tables.append(model.__tablename__)
        execute(sync_db.case.statistics, tables)

    def execute(statement: str | None, names: Iterable[str]) -> None:
        quote = sync_db.engine.dialect.identifier_preparer.quote
        with sync_db.engine.begin() as connection:
            for name in names if statement else ():
                connection.exec_driver_sql(str(statement).format(table=quote(name)))

    execute(by_itself and by_itself % "off", every)
    execute(by_itself and sync_db.case.no_statistics, every)  # what the server has collected during earlier tests
    yield count_rows
    execute(sync_db.case.no_statistics, tables)
    execute(by_itself and by_itself % "on", every)


# -- the number of rows that a call reads does not grow with the table, with or without planner statistics ------------

MODELS = pytest.mark.parametrize("model", [Mail, Parcel, Seat], ids=lambda model: model.__name__)


def claim_ready(session: Actor, model: Any) -> Any:
    return session.claim_many(model, limit=READY)


def claim_due(session: Actor, model: Any) -> Any:
    return session.claim_many(model, limit=READY + DUE)


def claim_by_key(session: Actor, model: Any) -> Any:
    keys = model.__queue_spec__.primary_key
    return session.claim(model, *(key == value for key, value in zip(keys, key_of(model, 0), strict=True)))


CLAIMS: Mapping[str, Call] = {
    "claim ready tasks": claim_ready,
    "claim due tasks": claim_due,
    "claim by key": claim_by_key,
    "lock ready tasks": lambda session, model: session.claim_many(model, limit=READY, lease=None),
    "consume": lambda session, model: session.consume_many(model, limit=READY),
    "next_due": lambda session, model: session.run(next_due, model),
}
UPKEEP: Mapping[str, Call] = {
    "promote": lambda session, model: session.promote(model),
    "rescue": lambda session, model: session.rescue(model),
    "prune": lambda session, model: session.prune(model, HOUR, limit=OLD) if model is Mail else None,
}
WHY: Mapping[str, Call] = {
    "why the first": lambda session, model: session.why(Claim(model, key_of(model, 0), 0)),
    "why the last": lambda session, model: session.why(Claim(model, key_of(model, READY + DUE - 1), 0)),
}


def in_group(model: Any) -> Any:
    return in_error_group(model, error_group("no"))


def failing(number: int, error: str, again: datetime = TOMORROW) -> list[dict[str, Any]]:
    """Return tasks with this error, half of which will be retried then."""
    common = {"available_at": PAST, "claimed_at": PAST, "error": error, "error_group": error_group(error)}
    dead = {**common, "status": "discarded", "finished_at": PAST}
    return [dead, {**common, "status": "retryable", "available_at": again}] * (number // 2)


def newest(model: Any) -> Any:
    return Sorting.CREATED.order(model.__queue_spec__, descending=True)


def pages(scan: int) -> Mapping[str, Call]:
    """Return the calls that look at up to so many tasks of each kind."""
    return {
        "page": lambda session, model: session.run(page, model, limit=scan),
        "page by error": lambda session, model: session.run(page, model, model.error == "no", scan=scan),
        "page of running tasks": lambda session, model: session.run(page, model, status=Status.RUNNING, scan=scan),
        "page of dead letters": lambda session, model: session.run(page, model, status=Status.DISCARDED, scan=scan),
        "page, newest": lambda session, model: session.run(page, model, order=newest(model), limit=scan, scan=scan),
        "page of available tasks, newest": lambda session, model: session.run(
            page, model, order=newest(model), status=Status.AVAILABLE, scan=scan
        ),
        "page by error, of each group of states": lambda session, model: session.run(
            page, model, model.error == "no", order=newest(model), by_state=True, scan=scan
        ),
        "overview": lambda session, model: session.overview(model, cap=scan, scan=scan),
        "stats by error": lambda session, model: session.stats(model, model.error == "no", cap=scan, scan=scan),
        "errors": lambda session, model: session.errors(model, cap=scan),
    }


PAGES = pages(READY)
IN_PART: Mapping[str, Call] = {
    "retry tasks of an error group": lambda session, model: session.retry(model, in_group(model), limit=FAILING),
    "cancel tasks of an error group": lambda session, model: session.cancel(model, in_group(model), limit=FAILING // 2),
}
OF_GROUP: Mapping[str, Call] = {
    "retry an error group": lambda session, model: session.retry(model, in_group(model)),
    **IN_PART,
}
OF_TOPIC: Mapping[str, Call] = {
    "claim ready tasks of a topic": lambda session, _: session.claim_many(Mail, Mail.topic == "a", limit=READY),
    "claim due tasks of a topic": lambda session, _: session.claim_many(Mail, Mail.topic == "a", limit=READY + DUE),
    "next_due of a topic": lambda session, _: session.run(next_due, Mail, Mail.topic == "a"),
    "claim from a topic with nothing in it": lambda session, _: session.claim(Mail, Mail.topic == "z"),
}


def in_the_way(db: Database, model: Any, start: int, number: int) -> None:
    """Insert rows that calls must not read: just finished, failed otherwise, scheduled for later, running, adopted."""
    now = clock(db)
    others = [
        *[{"status": "completed", "available_at": now, "finished_at": now}] * number,
        *[{"status": "scheduled", "available_at": TOMORROW}] * number,
        *[{"status": "running", "available_at": TOMORROW, "attempt": 1}] * (number // 10),
        *[{"status": "completed", "available_at": NEVER}] * number,
        *failing(number, "otherwise"),
    ]
    stored(db, model, start, others)


@MODELS
@pytest.mark.requires("statistics")
def test_the_rows_read_do_not_grow(sync_db: Database, counted: Callable[[Any], None], model: Any) -> None:
    calls = {**CLAIMS, **UPKEEP, **WHY, **PAGES, **OF_GROUP, **(OF_TOPIC if model is Mail else {})}
    start = to_be_found(sync_db, model)
    in_the_way(sync_db, model, start, FEW // 2)
    small = efforts(sync_db, model, calls)
    in_the_way(sync_db, model, start + 3 * FEW, MANY // 2)  # of four kinds
    unknown = growing(small, efforts(sync_db, model, calls))
    if sync_db.case.analyze is not None:  # the next test has as many rows as such a planner needs for pages
        unknown = {name: grown for name, grown in unknown.items() if name not in PAGES}
    assert unknown == {}, "with a planner that knows nothing"
    counted(model)
    assert growing(small, efforts(sync_db, model, calls)) == {}, "with a planner that knows the table"
    with sync_db.engine.connect() as connection:
        assert list(unserved_claims(connection, adapter_for(connection.dialect), model.__queue_spec__)) == []


@pytest.mark.requires("analyze")
def test_pages_search_a_large_table_by_its_indexes_even_if_the_planner_knows_nothing(
    sync_db: Database, counted: Callable[[Any], None]
) -> None:
    """It expects a two-hundredth of the rows in each state, and sorts all of them if that is less than a page needs."""
    states = [("scheduled", None), ("retryable", None), ("running", None), ("discarded", PAST), ("completed", PAST)]
    common = {"max_attempts": 5, "topic": "a", "available_at": TOMORROW}
    others = [{**common, "status": status, "finished_at": end} for status, end in states]
    insert_many(sync_db, Mail, *others)
    to_be_found(sync_db, Mail, 10_000_000)
    small = efforts(sync_db, Mail, pages(10), settles=False)
    insert_many(sync_db, Mail, *others, times=3)
    assert growing(small, efforts(sync_db, Mail, pages(10), settles=False)) == {}


# -- looks at latches read no more if these have ended members, or others have members ---------------------------------

KEYS = [f"mine {number}" for number in range(20)]
MEMBERS = int(os.environ.get("SQLQUEUE_TEST_MEMBERS", str(MANY)))
"""Of other batches; raise it after changes of how looks search."""


def look(session: Actor, _: Any) -> Any:
    def ripe(inner: Any) -> list[str]:
        latches = Latches.of(inner, Page.__queue_spec__)
        latches.begin()
        return latches.ripe(KEYS)

    assert session.run(ripe) == KEYS[:1]


OF_BATCHES: Mapping[str, Call] = {
    "progress": lambda session, _: session.progress(Page, KEYS[1]),
    "graph": lambda session, _: session.graph(Page, KEYS[1]),
    "batches": lambda session, _: session.batches(Page, limit=len(KEYS)),
}
"""They read the members that they count."""


@pytest.mark.requires("statistics")
def test_a_look_reads_no_members_but_those_that_it_searches_for_nor_does_a_list_others(
    sync_flow: Database, counted: Callable[[Any], None]
) -> None:
    db, ended = sync_flow, {"status": "completed", "finished_at": PAST, "created_at": PAST}
    unfinished = {"status": "available", "finished_at": None, "created_at": PAST}

    def latches(keys: Iterable[str]) -> None:
        given = {"members": [Page.__tablename__], "waiters": [], "sealed": 1}
        db.execute(insert(Latch), [{"id": key, "reports_to": None, "waits_for": None, **given} for key in keys])

    def members(keys: Sequence[str], rows: Sequence[Mapping[str, Any]], number: int) -> None:
        for start in range(0, number, MANY):
            some = range(start, min(start + MANY, number))
            db.insert(Page, [{**rows[n % len(rows)], "reports_to": keys[n % len(keys)]} for n in some])

    latches(KEYS)
    latches(others := [f"other {number}" for number in range(50)])
    members(KEYS[1:], [unfinished], len(KEYS) - 1)
    members(KEYS, [ended], READY)
    small = efforts(db, Page, {"look": look}, settles=False)
    members(KEYS, [ended], FEW)
    small |= efforts(db, Page, OF_BATCHES, settles=False)
    members(others, [ended, unfinished, ended], MEMBERS)
    calls = {"look": look, **OF_BATCHES}
    assert growing(small, efforts(db, Page, calls, settles=False)) == {}, "with a planner that knows nothing"
    counted(Page)
    counted(Latch)
    large = efforts(db, Page, calls, settles=False)
    assert growing(small, large) == {}, "with a planner that knows the tables"
    print(f"\n{db.case.name}, {len(KEYS)} latches:", {name: (small[name].amount, large[name].amount) for name in calls})


@pytest.mark.requires("statistics")
def test_a_retry_reads_only_what_its_failure_has_cancelled(sync_flow: Database, counted: Callable[[Any], None]) -> None:
    db = sync_flow
    with db.begin() as session, session.session.batch("mine") as batch:
        batch.add(fails := Page())
        batch.then(callback := Page())
    keys = fails.id, callback.id
    with db.begin() as session:
        session.discard(session.claim(Page), "no")
    db.committed.advance(Page)

    def retry(session: Actor, _: Any) -> None:
        assert session.retry(Page, Page.id == keys[0]) == 1
        assert session.scalar(select(Page.status).where(Page.id == keys[1])) == "waiting"

    small = efforts(db, Page, {"retry": retry}, settles=False)
    ended = {"status": "cancelled", "waits_when": "completed", "attempt": 0, "finished_at": PAST, "created_at": PAST}
    db.insert(Page, [{**ended, "waits_for": f"other {number}", "available_at": PAST} for number in range(MANY)])
    assert growing(small, efforts(db, Page, {"retry": retry}, settles=False)) == {}, "with a planner that knows nothing"
    counted(Page)
    assert growing(small, efforts(db, Page, {"retry": retry}, settles=False)) == {}, "with a planner that knows it"


# -- rows that a call does not need are not read ----------------------------------------------------------------------


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


@pytest.mark.sync_only
def test_a_claim_of_several_topics_reads_their_first_tasks_alone(db: Database) -> None:
    """To a planner without statistics, a topic looks smaller than a list of keys."""

    def effort() -> int:
        with db.read_committed.session() as session:
            if db.case.name == "postgresql":
                session.session.execute(text("SET LOCAL enable_bitmapscan = off"))  # or it would sort all tasks
            with reading(session, db.case) as read:
                assert len(session.claim_many(Mail, Mail.topic.in_(["a", "b"]), limit=4)) == 4
        return read.amount

    moments = (PAST + number * timedelta(milliseconds=1) for number in count())
    backlog = [{"topic": "ab"[number % 2], "available_at": next(moments)} for number in range(20_000)]
    db.insert(Mail, backlog[:200])
    small = effort()
    db.insert(Mail, backlog[200:])
    assert effort() <= 2 * small


@pytest.mark.requires("statistics")
def test_tasks_are_not_read_for_a_large_error_group_behind_them(
    sync_db: Database, counted: Callable[[Any], None]
) -> None:
    """To a planner, the first tasks by time or in the table look as likely to be in the group as the last ones."""
    behind = failing(2 * FEW, "no", TOMORROW + HOUR)
    stored(sync_db, Task, MANY, behind)
    small = efforts(sync_db, Task, IN_PART, settles=False)
    sync_db.execute(delete(Task))
    stored(sync_db, Task, 0, failing(MANY, "otherwise"))
    stored(sync_db, Task, MANY, behind)
    assert growing(small, efforts(sync_db, Task, IN_PART, settles=False)) == {}, "with a planner that knows nothing"
    counted(Task)
    assert growing(small, efforts(sync_db, Task, IN_PART, settles=False)) == {}, "with a planner that knows the table"


@pytest.mark.requires("statistics")
def test_due_rows_are_not_read_for_crashed_tasks(sync_db: Database, counted: Callable[[Any], None]) -> None:
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


def with_kept_plans(db: Database) -> Database:
    setting, driver = db.case.generic_plans
    return db.variant(isolation_level="READ COMMITTED", on_connect=setting, connect_args=driver)


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
    found = efforts(sync_db, Task, calls, engine=with_kept_plans(sync_db) if prepared else None)
    assert {name for name in calls if Task.__tablename__ in found[name].searched} == set()


@pytest.mark.parametrize("prepared", [False, True], ids=["replanned", "prepared"])
@pytest.mark.requires("searched_sql", "generic_plans")
def test_settling_does_not_read_scheduled_rows(crowded: Database, prepared: bool) -> None:
    found = efforts(crowded, Task, {}, engine=with_kept_plans(crowded) if prepared else None)
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


# -- the number of rows read from a history does not depend on the number of other attempts ---------------------------

__all__ = ["sync_archive", "sync_flow"]

SOME = 50
"""The number of attempts that each call finds."""
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

HISTORY_CALLS: Mapping[str, Call] = {
    "history of a task": lambda session, _: session.history(Claim(history.Parcel, (7,), 0)),
    "errors": lambda session, _: session.errors(history.Parcel, cap=SOME),
    "timeline": lambda session, _: session.timeline(history.Parcel, since=HOUR, bucket=MINUTE),
    "timeline, capped": lambda session, _: session.timeline(history.Parcel, since=7 * DAY, cap=SOME),
    "prune": lambda session, _: session.prune_history(history.Parcel, 30 * DAY, limit=SOME),
    "prune all": lambda session, _: session.prune_history(history.Parcel, 30 * DAY),
    "count those to prune": lambda session, _: session.run(count_old_attempts, history.Parcel, 30 * DAY, cap=SOME),
}


def store_attempts(db: Database, number: int, **columns: Any) -> None:
    common = {"queue": "past_parcel", "attempt": 1, "outcome": "completed", "claimed_by": "a", "error": None}
    rows = [{"task": str(1_000 + n), "started_at": PAST, **common, **columns} for n in range(number)]
    with db.engine.begin() as connection:
        connection.execute(insert(Past), rows)


def attempts_to_be_found(db: Database, now: datetime) -> None:
    store_attempts(db, SOME, task="7", finished_at=now - HOUR / 2)
    store_attempts(db, SOME, finished_at=PAST)
    for outcome in FAILED:
        store_attempts(db, SOME, outcome=outcome.value, error="no", finished_at=now - HOUR / 2)


def attempts_in_the_way(db: Database, now: datetime, number: int) -> None:
    """Insert attempts at other tasks and of other queues, with other outcomes and times."""
    for queue in ("past_flare", "past_parcel"):
        for outcome in AttemptOutcome:
            error = "no" if outcome in FAILED else None
            store_attempts(db, number // 10, queue=queue, outcome=outcome.value, error=error, finished_at=now - 2 * DAY)
    store_attempts(db, number, finished_at=now - 2 * DAY)
    store_attempts(db, number, queue="past_flare", finished_at=PAST)


@pytest.mark.requires("statistics")
def test_the_attempts_read_do_not_grow(sync_archive: Database, counted: Callable[[Any], None]) -> None:
    now = clock(sync_archive)
    attempts_to_be_found(sync_archive, now)
    attempts_in_the_way(sync_archive, now, FEW)
    small = efforts(sync_archive, Past, HISTORY_CALLS, settles=False)
    attempts_in_the_way(sync_archive, now, MANY)
    assert growing(small, efforts(sync_archive, Past, HISTORY_CALLS, settles=False)) == {}, (
        "with a planner that knows nothing"
    )
    counted(Past)
    assert growing(small, efforts(sync_archive, Past, HISTORY_CALLS, settles=False)) == {}, (
        "with a planner that knows the table"
    )
