"""The cost of each call, as recorded in `costs/<engine>.json`, which is the same for sync and asyncio sessions.
Statements and commits are counted as SQLAlchemy sends them; requests are counted too, if the server reports them, since
a driver may send many requests for one statement.  After an intended change, run `SQLQUEUE_PIN=1 pytest
tests/suite/test_costs.py` and review the difference.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, text
from sqlalchemy.engine.interfaces import CacheStats

from sqlqueue import Claim, claim_of, utcnow
from sqlqueue.operations.upkeep import extend
from sqlqueue.worker import registration
from tests.support.fleet import Errand, Fleet, FleetWorker, fleet
from tests.support.flows import Page, flow
from tests.support.harness import Actor, Database
from tests.support.history import Parcel, archive
from tests.support.models import Document, Film, Listing, Mail, Report, Seat, Spool, Task, Visit
from tests.support.polling import next_due
from tests.support.rows import PAST, rows

__all__ = ["archive", "fleet", "flow"]

PINNED = Path(__file__).parent / "costs"
MINUTE = timedelta(minutes=1)
Call = Callable[[Actor], Any]
Setup = Callable[[Database, int], Call]
"""Prepares the data for the call that it returns; the number distinguishes repeated calls."""


def claims(model: Any, limit: int, *conditions: str, **arguments: Any) -> Setup:
    def prepare_call(db: Database, number: int) -> Call:
        fill(db, model, limit, number, *conditions)
        return lambda session: session.claim_many(model, limit=limit, claimed_by=f"claimer {number}", **arguments)

    return prepare_call


def settles(model: Any, many: int, call: Callable[[Actor, Sequence[Any], int], Any], calls: int = 1) -> Setup:
    """Settle in a different transaction than that of the claims, which were made by several calls."""

    def prepare_call(db: Database, number: int) -> Call:
        fill(db, model, many, number)
        with db.begin() as session:
            claimed = [session.claim_many(model, limit=many // calls) for _ in range(calls)]
            tasks = [claim_of(task) for some in claimed for task in some]
        assert len(tasks) == many
        return lambda session: call(session, tasks, number)

    return prepare_call


def locks(session: Actor) -> None:
    session.complete(session.claim_many(Task, limit=10, lease=None))


def works(session: Actor) -> None:
    with session.claiming(Task) as task:
        assert task is not None


def enqueues(model: Any, many: int, values: Callable[[int], Mapping[str, Any]], **arguments: Any) -> Setup:
    def prepare_call(db: Database, number: int) -> Call:
        given = [{**values(n), **({"version": number} if arguments else {})} for n in range(many)]
        if arguments:  # the existing rows that they conflict with
            db.committed.enqueue(model, given, **arguments)
        return lambda session: session.enqueue(model, given, **arguments)

    return prepare_call


def plainly(call: Callable[[Actor, int], Any], prepare: Setup | None = None) -> Setup:
    def prepare_call(db: Database, number: int) -> Call:
        if prepare is not None:
            prepare(db, number)
        return lambda session: call(session, number)

    return prepare_call


def fill(db: Database, model: Any, many: int, number: int, *conditions: str) -> None:
    own: Mapping[Any, Callable[[int], Mapping[str, Any]]] = {
        Seat: lambda n: {"line": f"line {os.urandom(4).hex()}", "number": n},
        Listing: lambda n: {"unique_key": os.urandom(8).hex()},
        Film: lambda n: {"unique_key": os.urandom(8).hex()},
        Report: lambda n: {"schedule": "PT60S", "created_at": PAST - MINUTE},  # with its own time
        Page: lambda n: {"reports_to": "batch"},
        Visit: lambda n: {"limit_key": os.urandom(8).hex()},
    }
    common = {"created_at": PAST}  # with nothing to call, a driver sends many rows at once
    given = [{**common, **row, **own.get(model, lambda _: {})(n)} for n, row in enumerate(rows(many, *conditions))]
    if model is Visit:
        db.committed.enqueue(model, given)
    else:
        db.insert(model, given)


SETTLINGS: Mapping[str, Callable[[Actor, Sequence[Any], int], Any]] = {
    "complete": lambda session, tasks, _: session.complete(tasks),
    "fail": lambda session, tasks, number: session.fail(tasks, f"error {number}"),
    "release": lambda session, tasks, _: session.release(tasks),
    "snooze": lambda session, tasks, number: session.snooze(tasks, (number + 1) * MINUTE),
    "discard": lambda session, tasks, number: session.discard(tasks, f"error {number}"),
    "cancel": lambda session, tasks, _: session.cancel(tasks),
    "heartbeat": lambda session, tasks, number: session.heartbeat(tasks, (number + 1) * MINUTE),
    "extend": lambda session, tasks, number: session.run(extend, tasks, (number + 1) * MINUTE),
}

ENDINGS = [name for name in SETTLINGS if name not in ("heartbeat", "extend")]


def setups() -> Iterator[tuple[str, Setup]]:
    yield "claim nothing", plainly(lambda session, _: session.claim(Document))
    for many in (1, 10, 100):
        yield f"claim {many}", claims(Task, many)
        yield (
            f"consume {many}",
            plainly(lambda session, _, many=many: session.consume_many(Task, limit=many), claims(Task, many)),
        )
    yield "complete 100", settles(Task, 100, SETTLINGS["complete"])
    for name, call in SETTLINGS.items():
        for many in (1, 10):
            yield f"{name} {many}", settles(Task, many, call)
        yield f"{name} 10 of 5 claims", settles(Task, 10, call, calls=5)
    yield "claim due", claims(Mail, 10, "scheduled", "retryable", "expired")
    yield "claim 10 of a topic", claims(Mail, 10)
    yield "claim, lock only, and complete 10", plainly(lambda session, _: locks(session), claims(Task, 10))
    yield "claiming", plainly(lambda session, _: works(session), claims(Task, 1))
    for model in (Seat, Spool, Listing, Film, Report, Visit):
        yield f"{model.__name__}: claim 10", claims(model, 10)
        yield f"{model.__name__}: complete 10", settles(model, 10, SETTLINGS["complete"])
        yield f"{model.__name__}: fail 10", settles(model, 10, SETTLINGS["fail"])
    yield "Visit: claim 1", claims(Visit, 1)
    yield "Visit: heartbeat 10", settles(Visit, 10, SETTLINGS["heartbeat"])
    yield "Spool: consume 10", plainly(lambda session, _: session.consume_many(Spool, limit=10), claims(Spool, 10))
    for name in ("complete", "fail", "discard", "cancel"):
        for many in (1, 10):
            yield f"Page: {name} {many}", settles(Page, many, SETTLINGS[name])
    yield from enqueueing()
    yield "next_due", plainly(lambda session, _: session.run(next_due, Task))
    yield "promote", plainly(lambda session, _: session.promote(Mail), claims(Mail, 10, "scheduled"))
    yield "rescue", plainly(lambda session, _: session.rescue(Task))
    yield "retry", plainly(lambda session, number: session.retry(Task, Task.number == number))
    yield "rerun", plainly(lambda session, number: session.rerun(Task, Task.number == number))
    yield "cancel where", plainly(lambda session, number: session.cancel(Task, Task.number == number + 7))
    yield "prune 10", plainly(lambda session, number: session.prune(Mail, (number + 1) * MINUTE, limit=10))
    yield "stats", plainly(lambda session, _: session.stats(Task))
    yield from with_history()
    yield from of_workers()


def with_history() -> Iterator[tuple[str, Setup]]:
    yield "Past: claim 10", claims(Parcel, 10)
    yield "Past: claim due", claims(Parcel, 10, "scheduled", "retryable", "expired")
    yield (
        "Past: consume 10",
        plainly(lambda session, _: session.consume_many(Parcel, limit=10), claims(Parcel, 10)),
    )
    for name in ENDINGS:
        yield f"Past: {name} 10", settles(Parcel, 10, SETTLINGS[name])
        yield f"Past: {name} 10 of 5 claims", settles(Parcel, 10, SETTLINGS[name], calls=5)
    yield "Past: history", plainly(lambda session, number: session.history(Claim(Parcel, (number,), 1)))
    yield "Past: errors", plainly(lambda session, _: session.errors(Parcel))
    yield "Past: timeline", plainly(lambda session, _: session.timeline(Parcel))
    yield (
        "Past: prune_history 10",
        plainly(lambda session, number: session.prune_history(Parcel, timedelta(microseconds=number), limit=10)),
    )


def of_workers() -> Iterator[tuple[str, Setup]]:
    for many in (1, 30):
        yield f"workers, of {many}", plainly(lambda session, _: session.workers(Fleet), registers(many))
    yield "unserved", plainly(lambda session, _: session.unserved(Fleet))
    yield "a worker's report", plainly(lambda session, _: session.run(reports, "worker 0"))


def registers(many: int) -> Setup:
    def prepare_call(db: Database, number: int) -> Call:
        facts = {"host": "a", "process": 7, "claimer": 1, "handlers": [], "started_at": PAST, "seen_at": PAST}
        with db.engine.begin() as connection:
            connection.execute(delete(FleetWorker))
            names = [f"worker {n}" for n in range(many)]
            connection.execute(insert(FleetWorker), [{"id": name, "name": name, **facts} for name in names])
        return lambda session: None

    return prepare_call


def reports(session: Any, key: str) -> None:
    facts = {"seen_at": utcnow(), "stalled_at": None, "handlers": [], "last_claim_at": None, "memory": None}
    registration._report(session, Errand.__queue_spec__, FleetWorker.__table__, {"id": key, **facts})


def enqueueing() -> Iterator[tuple[str, Setup]]:
    yield "enqueue an instance", plainly(lambda session, number: session.enqueue(Task(number=number)))
    yield "add 100 instances", plainly(lambda session, _: session.add_all([Task(number=n) for n in range(100)]))
    yield "enqueue 100", enqueues(Task, 100, lambda n: {"number": n})
    for on_conflict in ("ignore", "replace", "rerun"):
        for many in (1, 100):
            key = partial(lambda kind, n: {"id": f"{kind} {n}"}, f"{on_conflict} {many}")
            yield f"Document: {on_conflict} {many}", enqueues(Document, many, key, on_conflict=on_conflict)
            unique = partial(lambda kind, n: {"unique_key": f"{kind} {n}"}, f"{on_conflict} {many}")
            yield f"Listing: {on_conflict} {many}", enqueues(Listing, many, unique, on_conflict=on_conflict)


class Meter:
    """Counts the statements of a database's sessions, and records which had to be compiled."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._counts = Counter[str]()
        self.compiled: list[str] = []
        engine = db.session_engine
        event.listen(engine, "before_cursor_execute", partial(self._count, "statement"))
        event.listen(engine, "commit", partial(self._count, "commit"))
        event.listen(engine, "after_cursor_execute", self._look)

    def _count(self, what: str, *_: object) -> None:
        self._counts[what] += 1

    def _look(self, connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if context.compiled is None or "SAVEPOINT" in statement:  # not one of the library's statements
            return
        can_be_kept = getattr(context.compiled.statement, "inherit_cache", None) is not False  # upserts, since 2.1
        if can_be_kept and context.cache_hit is not CacheStats.CACHE_HIT:
            self.compiled.append(statement)

    @contextmanager
    def running(self) -> Iterator[Counter[str]]:
        """Yield a value that is set to the cost of the block."""
        found = Counter[str]()
        before, own = self._requests(), self._requests()
        self._counts.clear()
        self.compiled.clear()
        yield found
        found.update(self._counts)
        found["request"] = self._requests() - own - (own - before)

    def _requests(self) -> int:
        """Return the number of requests that the server has counted on the only connection."""
        if self._db.case.requests_sql is None:
            return 0
        with self._db.session() as session:
            return int(session.scalar(text(self._db.case.requests_sql)))


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[each]} {each}s" for each in ("statement", "commit", "request") if counts[each])


def statements(told: str) -> int:
    return int(told.split(maxsplit=1)[0])


def measured(db: Database) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the cost of each call when it is repeated with other values, and the statements compiled then."""
    costs: dict[str, str] = {}
    compiled: dict[str, list[str]] = {}
    level = "SERIALIZABLE" if db.case.one_writer else "READ COMMITTED"
    metered = db.variant(isolation_level=level, pool_size=1, max_overflow=0)
    meter = Meter(metered)
    for name, setup in setups():
        for number in range(2):
            call = setup(db, number)
            with meter.running() as counts, metered.begin() as session:
                call(session)
        costs[name] = told(counts)
        if meter.compiled:
            compiled[name] = list(meter.compiled)
    return costs, compiled


def test_each_call_costs_what_is_pinned(archive: Database, fleet: Database, flow: Database) -> None:
    db = archive
    path = PINNED / f"{db.case.name}.json"
    if not path.exists() and not os.environ.get("SQLQUEUE_PIN"):
        pytest.skip(f"no counts for {db.case.name} yet: SQLQUEUE_PIN=1")
    costs, compiled = measured(db)
    if os.environ.get("SQLQUEUE_PIN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(costs, indent=1) + "\n")
    assert costs == json.loads(path.read_text())
    for name in ENDINGS:
        for what in (f"{name} 10", f"{name} 10 of 5 claims"):
            assert statements(costs[f"Past: {what}"]) == statements(costs[what]) + 1, "one more for each batch"
    for what in (f"{name} {many}" for name in ("complete", "fail", "discard", "cancel") for many in (1, 10)):
        assert costs[f"Page: {what}"] == costs[what], "nothing more for a batch"
    assert costs["workers, of 1"] == costs["workers, of 30"]
    assert compiled == {}, "statements are compiled again"
