"""Every operation of a session that sees one tenant's tasks leaves those of others alone, and shows nothing of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Identity, Integer, String, event, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, with_loader_criteria

from sqlqueue import (
    ArgumentError,
    Cause,
    Claim,
    ClaimLostError,
    ConstantBackoff,
    DuplicateTaskError,
    FlowMixin,
    HistoryMixin,
    LatchMixin,
    LimitMixin,
    PauseMixin,
    QueueOptions,
    QueueSession,
    Rate,
    RecurringMixin,
    SlotMixin,
    TopicMixin,
    UniqueMixin,
    WorkerMixin,
)
from tests.support import tables
from tests.support.harness import Actor, Database
from tests.support.rows import PAST, TOMORROW

pytestmark = pytest.mark.sync_only

OTHER, MINE = 6, 7
REFUSALS = (ArgumentError, DuplicateTaskError, DBAPIError)
"""DBAPIError: a policy of the server has refused a statement."""
DAY = timedelta(days=1)


class Base(DeclarativeBase):
    pass


class Past(HistoryMixin, Base):
    __tablename__ = "tenant_past"


class Stop(PauseMixin, Base):
    __tablename__ = "tenant_stop"


class Crew(WorkerMixin, Base):
    __tablename__ = "tenant_crew"


class Bay(SlotMixin, Base):
    __tablename__ = "tenant_bay"


class HasTenant:
    tenant: Mapped[int] = mapped_column(Integer)


class Deed(HasTenant, UniqueMixin, TopicMixin, LimitMixin, RecurringMixin, Base):
    __tablename__ = "tenant_deed"
    __queue__ = QueueOptions(slots=Bay, max_attempts=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    note: Mapped[str] = mapped_column(String(50))


class Latch(LatchMixin, Base):
    __tablename__ = "tenant_latch"


class Errand(HasTenant, FlowMixin, Base):
    __tablename__ = "tenant_errand"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    note: Mapped[str] = mapped_column(String(50))


READY, DEAD, WAITING, HOURLY, EXHAUSTED, DONE = range(1, 7)


def key(tenant: int, what: int) -> int:
    return 1_000 * tenant + what  # no sequence reaches these


def deeds(tenant: int) -> list[dict[str, Any]]:
    """Return a task in each state; all texts of a tenant contain its number."""
    ended = {"finished_at": PAST, "available_at": PAST, "attempt": 2, "max_attempts": 2}
    secret = {"error": f"secret of {tenant}"}
    each: dict[int, dict[str, Any]] = {
        READY: {"available_at": PAST, "unique_key": f"{tenant}:ready", "limit_key": f"{tenant}:limit"},
        DEAD: {"status": "discarded", "former_key": f"{tenant}:dead", **ended, **secret},
        WAITING: {"status": "retryable", "available_at": TOMORROW, "attempt": 1, **secret},
        HOURLY: {"status": "scheduled", "available_at": TOMORROW, "schedule": "PT1H", "unique_key": f"{tenant}:hourly"},
        EXHAUSTED: {**ended, "status": "running", "finished_at": None, "claimed_at": PAST, "claim_token": 5},
        DONE: {"status": "completed", **ended},
    }
    same = {"tenant": tenant, "note": f"secret of {tenant}", "topic": f"{tenant}:topic"}
    return [{"id": key(tenant, what), **same, **columns} for what, columns in each.items()]


def attempt(tenant: int) -> dict[str, Any]:
    told = {"outcome": "failed", "error": f"secret of {tenant}", "traceback": f"secret of {tenant}"}
    return {"queue": Deed.__tablename__, "task": str(key(tenant, DEAD)), "attempt": 1, "finished_at": PAST, **told}


_FILLED: dict[URL, list[Any]] = {}
"""The databases that have the tables, and what is not ours in them. All tests roll back what they do."""


@pytest.fixture
def filled(db: Database) -> Database:
    if db.url not in _FILLED:
        tables.make(db.engine, Base.metadata)
        fill(db)
        with db.begin() as actor:
            _FILLED[db.url] = others(actor)
    return db


def fill(db: Database) -> None:
    for tenant in (OTHER, MINE):
        for row in deeds(tenant):
            db.insert(Deed, [row])
        db.insert(Past, [attempt(tenant)])
        with db.begin() as actor, actor.batch(f"{tenant}:batch") as errands:
            errands.add(Errand, [{"tenant": tenant, "note": f"secret of {tenant}"}])
            errands.then(Errand(tenant=tenant, note=f"secret of {tenant}"))
    with db.engine.connect() as connection:
        now = connection.scalar(select(Deed.created_at).limit(1))
    handler = {"queue": Deed.__tablename__, "functions": None, "whole": True, "slots": 1, "busy": 0}
    worker = {
        "name": "w",
        "host": "h",
        "process": 1,
        "claimer": 1,
        "started_at": now,
        "seen_at": now,
        "handlers": [handler],
    }
    db.insert(Crew, [{"id": "w", **worker}])
    db.committed.set_limit(Deed, f"{OTHER}:limit", 3)


# -- what each operation does ------------------------------------------------------------------------------------------


def of(tenant: int, what: int) -> Claim:
    """A claim that guesses the token of the task that runs, and is right."""
    return Claim(Deed, (key(tenant, what),), attempt=2, token=5, claimed_by=None, claimed_at=None)


def settles(settle: Callable[[Actor, Any], Any]) -> Callable[[Actor], Any]:
    """It settles our own claim, and no task that was not claimed."""

    def run(actor: Actor) -> Any:
        settle(actor, actor.claim(Deed))
        with pytest.raises(ClaimLostError):
            settle(actor, of(OTHER, READY))

    return run


def counts(number: int, change: Callable[[Actor], int]) -> Callable[[Actor], Any]:
    def run(actor: Actor) -> None:
        assert change(actor) == number

    return run


def refused(*calls: Callable[[Actor], Any]) -> Callable[[Actor], Any]:
    def run(actor: Actor) -> None:
        for call in calls:
            with pytest.raises(REFUSALS) as error:
                call(actor)
            assert f"secret of {OTHER}" not in str(error.value)
            actor.rollback()

    return run


def unscoped(read: Callable[[Actor], Any]) -> Callable[[Actor], Any]:
    """It reads tables that all tenants share, as the documentation says, and changes nothing."""

    def run(actor: Actor) -> None:
        read(actor)

    return run


def claiming(actor: Actor) -> Any:
    with actor.claiming(Deed) as deed:
        return deed


def enqueue(actor: Actor) -> None:
    row = {"tenant": MINE, "note": "mine"}
    keys: list[dict[str, Any]] = [{"unique_key": f"{OTHER}:ready"}, {"id": key(OTHER, DONE)}]
    for taken in keys:
        actor.enqueue(Deed, [{**row, **taken}], on_conflict="ignore")
        for how in ("raise", "replace", "rerun"):
            for rows in ([{**row, **taken}], [{**row, "unique_key": "free"}, {**row, **taken}]):
                with pytest.raises(REFUSALS):
                    actor.enqueue(Deed, rows, on_conflict=how)
                actor.rollback()
            with pytest.raises(REFUSALS):
                actor.enqueue(Deed(**row, **taken), on_conflict=how)
            actor.rollback()
    actor.enqueue(Deed, [{**row, "unique_key": f"{MINE}:ready", "priority": 9}], on_conflict="replace")
    actor.enqueue(actor.get_one(Deed, key(MINE, DONE)), on_conflict="rerun")


def declare(actor: Actor) -> Any:
    mine = {"tenant": MINE, "note": "mine", "schedule": "PT2H"}
    for taken in ("hourly", "ready"):
        with pytest.raises(REFUSALS):
            actor.declare_schedules(Deed, [{**mine, "unique_key": f"{OTHER}:{taken}"}])
        actor.rollback()
    declared = actor.declare_schedules(Deed, [{**mine, "unique_key": "new"}], remove_missing=True)
    assert (declared.created, declared.removed) == (("new",), (f"{MINE}:hourly",))


def batch(actor: Actor) -> None:
    with pytest.raises(DuplicateTaskError), actor.batch(f"{OTHER}:batch") as errands:
        errands.add(Errand, [{"tenant": MINE, "note": "mine"}])
    actor.rollback()
    with actor.batch("new", sealed=False) as errands:
        errands.add(Errand, [{"tenant": MINE, "note": "mine"}])


def seal(actor: Actor) -> None:
    with actor.batch("new", sealed=False) as errands:
        errands.add(Errand, [{"tenant": MINE, "note": "mine"}])
    assert actor.seal(Errand, "new")


def predecessors(actor: Actor) -> Any:
    (after,) = (each for each in actor.find(Errand) if each.waits_for is not None)
    actor.enqueue(Errand(tenant=MINE, note="mine"), after=f"{OTHER}:batch")
    (mine,) = actor.find(Errand, Errand.note == "mine")
    for task in (mine, Claim(Errand, (after.id - 2,), attempt=1)):  # the other tenant has two tasks, too
        assert list(actor.predecessors(Errand, of=task)) == []
    return [each.note for each in actor.predecessors(Errand, of=after)]


def graph(actor: Actor) -> None:
    assert actor.graph(Errand, f"{OTHER}:batch") is actor.progress(Errand, f"{OTHER}:batch") is None
    assert len(actor.graph(Errand, f"{MINE}:batch").nodes) == 2


def cancel_batch(actor: Actor) -> None:
    assert actor.cancel_batch(Errand, f"{OTHER}:batch") == 0
    assert actor.cancel_batch(Errand, f"{MINE}:batch") == 1


def advance(actor: Actor) -> None:
    """It starts nothing of others whose predecessors have not ended, and is refused where it does not see these."""
    with suppress(ArgumentError):
        assert actor.advance(Errand) == 0


def promote(actor: Actor) -> Any:
    actor.snooze(actor.claim(Deed), timedelta(0))
    return actor.promote(Deed)


def why(actor: Actor) -> Any:
    (gone,) = actor.why(of(OTHER, READY)).reasons
    assert gone.cause is Cause.MISSING
    mine = actor.why(of(MINE, READY))
    assert Cause.UNCOMMITTED not in {reason.cause for reason in mine.reasons}
    return mine


def history(actor: Actor) -> Any:
    assert actor.history(of(OTHER, DEAD)) == []
    (past,) = actor.history(of(MINE, DEAD))
    return past


def keys(actor: Actor) -> None:
    """They are those of our own tasks."""
    assert [(each.key, each.ready) for each in actor.keys(Deed)] == [(f"{MINE}:limit", 1)]


OPERATIONS: dict[str, Callable[[Actor], Any]] = {
    "claim": lambda a: [a.claim(Deed), a.claim(Deed, Deed.id == key(OTHER, READY))],
    "claim_many": lambda a: a.claim_many(Deed, limit=9),
    "claiming": claiming,
    "consume": lambda a: [a.consume(Deed), a.consume(Deed)],
    "consume_many": lambda a: a.consume_many(Deed, limit=9),
    "complete": settles(lambda a, task: a.complete(task)),
    "fail": settles(lambda a, task: a.fail(task, "no")),
    "release": settles(lambda a, task: a.release(task)),
    "snooze": settles(lambda a, task: a.snooze(task, DAY)),
    "heartbeat": settles(lambda a, task: a.heartbeat(task)),
    "discard": counts(4, lambda a: a.discard(Deed, error="no")),
    "cancel": counts(4, lambda a: a.cancel(Deed)),
    "enqueue": enqueue,
    "batch": batch,
    "seal": seal,
    "advance": advance,
    "open_event": refused(lambda a: a.open_event(Errand, "label")),
    "event": refused(lambda a: a.event(Errand, "label")),
    "predecessors": predecessors,
    "progress": counts(1, lambda a: a.progress(Errand, f"{MINE}:batch").total),
    "graph": graph,
    "batches": refused(lambda a: a.batches(Errand)),
    "cancel_batch": cancel_batch,
    "prune_batches": refused(lambda a: a.prune_batches(Errand, DAY)),
    "declare_schedules": declare,
    "reschedule": counts(7, lambda a: a.reschedule(Deed) + a.reschedule(Deed, schedule="PT2H")),
    "unschedule": counts(1, lambda a: a.unschedule(Deed)),
    "retry": counts(3, lambda a: a.retry(Deed)),
    "rerun": counts(2, lambda a: a.rerun(Deed)),
    "promote": counts(1, promote),
    "run_now": counts(2, lambda a: a.run_now(Deed)),
    "rescue": counts(1, lambda a: a.rescue(Deed)),
    "prune": counts(2, lambda a: a.prune(Deed, DAY)),
    "set_limit": refused(lambda a: a.set_limit(Deed, f"{OTHER}:limit", 0)),
    "set_rate": refused(lambda a: a.set_rate(Deed, f"{OTHER}:limit", Rate(1, per=DAY))),
    "limits": unscoped(lambda a: a.limits(Deed)),
    "keys": keys,
    "pause": refused(
        lambda a: a.pause(Deed),
        lambda a: a.pause(Deed, f"{OTHER}:topic"),
        lambda a: a.pause(Deed, key=f"{OTHER}:limit"),
    ),
    "resume": refused(lambda a: a.resume(Deed)),
    "paused": unscoped(lambda a: a.paused(Deed)),
    "workers": unscoped(lambda a: a.workers(Base)),
    "unserved": unscoped(lambda a: a.unserved(Base)),
    "drain_workers": refused(lambda a: a.drain_workers(Deed), lambda a: a.drain_workers(Base)),
    "stop_workers": refused(lambda a: a.stop_workers(Deed)),
    "release_workers": refused(lambda a: a.release_workers(Deed, "x"), lambda a: a.release_workers(Base, "x")),
    "set_concurrency": refused(lambda a: a.set_concurrency(Deed, 1)),
    "find": lambda a: a.find(Deed),
    "stats": counts(6, lambda a: a.stats(Deed).total),
    "stats_by": lambda a: list(a.stats_by(Deed, Deed.note)),
    "overview": counts(6, lambda a: a.overview(Deed).total),
    "timeline": counts(1, lambda a: sum(each.failed for each in a.timeline(Deed, since=DAY * 9000, bucket=DAY))),
    "errors": lambda a: a.errors(Deed),
    "why": why,
    "history": history,
    "prune_history": refused(lambda a: a.prune_history(Deed, DAY), lambda a: a.prune_history(Deed, DAY, limit=9)),
}


def test_every_operation_of_sessions_is_tested_here() -> None:
    assert set(OPERATIONS) == {name for name in vars(QueueSession) if not name.startswith("_")}


# -- sessions of a tenant ----------------------------------------------------------------------------------------------


@contextmanager
def by_criteria(db: Database) -> Iterator[Actor]:
    with db.begin() as actor:

        @event.listens_for(actor.sync_session, "do_orm_execute")
        def add_criteria(state: Any) -> None:
            if state.is_select:
                mine = with_loader_criteria(HasTenant, lambda cls: cls.tenant == MINE, include_aliases=True)
                state.statement = state.statement.options(mine)

        yield actor


SCOPED = (Deed.__tablename__, Errand.__tablename__)


@contextmanager
def by_policy(db: Database, *, listens: bool = True) -> Iterator[Actor]:
    """The usual recipe: a policy compares the tenant with a setting that `after_begin` makes, or else a statement."""
    role = f"tenant_{uuid.uuid4().hex[:12]}"
    own = "tenant = nullif(current_setting('test.tenant', true), '')::integer"
    with db.engine.begin() as connection:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
            *(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY" for table in SCOPED),
            *(f"CREATE POLICY own ON {table} USING ({own})" for table in SCOPED),
        ):
            connection.exec_driver_sql(statement)
    try:
        restricted = db.variant(on_connect=f"SET ROLE {role}")
        with restricted.begin() as actor:
            setting = select(func.set_config("test.tenant", str(MINE), text("true")))

            def set_tenant(_: Session, __: object, connection: Any) -> None:
                connection.execute(setting)

            if listens:
                event.listen(actor.sync_session, "after_begin", set_tenant)
            else:
                actor.execute(setting)
            yield actor
        restricted.dispose()
    finally:
        with db.engine.begin() as connection:
            for table in SCOPED:
                connection.exec_driver_sql(f"DROP POLICY own ON {table}")
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
            connection.exec_driver_sql(f"DROP OWNED BY {role}")
            connection.exec_driver_sql(f"DROP ROLE {role}")


def others(actor: Actor) -> list[Any]:
    """Return all that is not ours: tasks, attempts, slots, pauses and workers, as this transaction leaves them."""
    theirs = {
        Deed: Deed.tenant == OTHER,
        Errand: Errand.tenant == OTHER,
        Past: Past.task.like(f"{OTHER}%"),
        Bay: Bay.slot_key.like(f"{OTHER}%"),
    }
    found = []
    for model in (Deed, Errand, Past, Bay, Stop, Crew):
        table = model.__table__
        wanted = [theirs[model]] if model in theirs else []
        found += actor.connection().execute(select(table).where(*wanted).order_by(*table.primary_key)).all()
    return found


def shown(result: Any) -> str:
    if isinstance(result, Deed):
        return f"{result.tenant} {result.note}"
    return " ".join(map(shown, result)) if isinstance(result, (list, tuple)) else repr(result)


def check(db: Database, scoped: Any, name: str) -> None:
    with scoped(db) as actor:
        result = OPERATIONS[name](actor)
        told = shown(list(result) if isinstance(result, (list, tuple)) else result)
        actor.flush()
        if scoped is by_policy:
            actor.connection().exec_driver_sql("RESET ROLE")
        left = others(actor)
        actor.rollback()
    assert f"secret of {OTHER}" not in told
    assert f"{OTHER}:" not in told
    if result is not None and name not in ("why",):
        assert f"secret of {MINE}" in told, "it works for our own"
    assert left == _FILLED[db.url]


@pytest.mark.parametrize("name", OPERATIONS)
def test_criteria_of_a_session(filled: Database, name: str) -> None:
    check(filled, by_criteria, name)


@pytest.mark.requires("row_security")
@pytest.mark.parametrize("name", OPERATIONS)
def test_row_level_security(filled: Database, name: str) -> None:
    check(filled, by_policy, name)


@pytest.mark.requires("row_security")
def test_why_does_not_take_a_hidden_row_for_an_uncommitted_one(filled: Database) -> None:
    """Another connection cannot see the row without a setting that only this transaction has."""
    with by_policy(filled, listens=False) as actor:
        assert Cause.UNCOMMITTED not in {reason.cause for reason in actor.why(of(MINE, READY)).reasons}


@pytest.mark.requires("row_security")
def test_why_sees_the_lock_of_a_row_that_a_listener_shows(filled: Database) -> None:
    with filled.begin() as other, by_policy(filled) as actor:
        other.execute(select(Deed.id).where(Deed.id == key(MINE, READY)).with_for_update())
        assert [reason.cause for reason in actor.why(of(MINE, READY)).reasons] == [Cause.LOCKED]
        other.rollback()
