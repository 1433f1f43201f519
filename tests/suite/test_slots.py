"""Slots of limited queues are not lost when other sessions interfere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count as numbers
from itertools import islice, takewhile
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from sqlqueue import ArgumentError, Claim, ClaimLostError, Limit, QueueSession, Rate, Worker, claim_of
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.statements import MANY_LANES
from sqlqueue.kinds.limits import ENDLESS, create_slots, holder
from sqlqueue.operations import turns
from sqlqueue.queue.spec import spec_of
from sqlqueue.transaction import ledger_of
from tests.suite.limited import claim, held, locks_rows, visits
from tests.support.harness import Actor, Database
from tests.support.models import Slot, Visit
from tests.support.rows import PAST, TOMORROW, contenders, count, ids, row_of

MANY = 100
ENDS: Mapping[str, Callable[[Any], Any]] = {
    "cancel": lambda actor: actor.cancel(Visit),
    "discard": lambda actor: actor.discard(Visit, error="no"),
}


@locks_rows
@pytest.mark.parametrize("end", ENDS)
def test_a_task_that_changes_hands_while_it_is_ended_loses_no_slot(sync_db: Database, end: str) -> None:
    """Before each statement in turn, another session releases the task and claims it again."""

    def hand_over() -> None:
        with suppress(ClaimLostError):
            sync_db.committed.release(claims)
            claim(sync_db)

    for place in numbers():
        visits(sync_db, "a")
        claims = claim(sync_db)
        assert len(claims) == 1
        with interfering(sync_db.read_committed, place, hand_over) as threads:
            ENDS[end](sync_db.read_committed.committed)
        if not threads:
            break
        for running in select_running(sync_db):
            sync_db.committed.cancel(running)
        assert held(sync_db) == 0
    assert place > 1


@contextmanager
def interfering(db: Database, place: int, change: Callable[[], object]) -> Iterator[list[Thread]]:
    """Call `change` before one of the statements of this database, and yield the thread of that call, if there are so
    many statements."""
    sent = numbers()
    threads: list[Thread] = []

    def interfere(*_: Any) -> None:
        if next(sent) == place:
            threads.append(Thread(target=change, daemon=True))
            threads[0].start()
            threads[0].join(1)  # it may have to wait for the transaction with which it interferes

    db.observers["before_cursor_execute"] = (interfere,)
    try:
        yield threads
    finally:
        db.observers["before_cursor_execute"] = ()
    for thread in threads:
        thread.join()


def select_running(db: Database) -> list[Claim]:
    running = select(Visit.id, Visit.attempt).where(Visit.status == "running")
    with db.engine.connect() as connection:
        return [Claim(Visit, (key,), attempt) for key, attempt in connection.execute(running)]


SETTLING: Mapping[str, Callable[[Actor, list[Claim]], Any]] = {
    "complete": lambda actor, claims: actor.complete(claims),
    "fail": lambda actor, claims: actor.fail(claims, "no"),
    "release": lambda actor, claims: actor.release(claims),
    "cancel": lambda actor, claims: actor.cancel(Visit),
}


@locks_rows
@pytest.mark.parametrize("settle", SETTLING)
def test_a_slot_is_freed_even_if_the_transaction_does_not_see_it_yet(db: Database, settle: str) -> None:
    visits(db, "a", "b", None)
    with db.variant(isolation_level="REPEATABLE READ").session() as actor:
        assert len(actor.find(Visit)) == 3  # from here on its snapshot is current
        claims = claim(db)
        try:
            SETTLING[settle](actor, claims)
            actor.commit()
        except (DBAPIError, ClaimLostError):  # some engines reject this
            actor.rollback()
            SETTLING[settle](actor, claims)
            actor.commit()
    assert count(db, Visit, Visit.status == "running") == 0
    assert held(db) == 0


@locks_rows
def test_a_heartbeat_extends_a_slot_that_its_transaction_does_not_see_yet(db: Database) -> None:
    visits(db, "a", None)
    with db.variant(isolation_level="REPEATABLE READ").session() as actor:
        assert len(actor.find(Visit)) == 2
        claims = claim(db)
        try:
            actor.heartbeat(claims, timedelta(days=2))
            actor.commit()
        except (DBAPIError, ClaimLostError):
            actor.rollback()
            actor.heartbeat(claims, timedelta(days=2))
            actor.commit()
    assert count(db, Slot, Slot.status == "running", Slot.available_at > TOMORROW) == 1


@locks_rows
def test_a_task_that_changes_its_key_while_it_is_claimed_has_no_slot_of_another(sync_db: Database) -> None:
    """Before each statement of the claim in turn, its task's key changes to one at its limit."""
    visits(sync_db, "full", "full")
    assert len(claim(sync_db)) == 2

    def change_key() -> None:
        mine = update(Visit).where(Visit.id == key, Visit.status == "available")
        with sync_db.engine.begin() as connection:
            connection.execute(mine.values(limit_key="full"))

    for place in numbers():
        key = 1_000 + place
        sync_db.insert(Visit, [{"id": key, "limit_key": "a"}, {"id": key + 1_000, "limit_key": "b"}])
        with interfering(sync_db.read_committed, place, change_key) as threads:
            claims = claim(sync_db.read_committed, Visit.limit_key.in_(["a", "b"]))
        assert count(sync_db, Visit, Visit.status == "running", Visit.limit_key == "full") == 2
        sync_db.committed.complete(claims)
        if not threads:
            break


@locks_rows
@pytest.mark.filterwarnings("ignore:a claim in a REPEATABLE READ transaction can fail")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("lowered", ["limit", "rate", "rate with places worth several"])
def test_a_lowered_limit_or_rate_holds_for_a_claim_that_has_looked(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch, lowered: str, level: str
) -> None:
    """Before each statement of the claim in turn, what is allowed is lowered below what has started.  A task that
    starts before that, and ends after it, leaves a slot, or place, that seems to be as free as it was."""
    calls, is_limit, places = sync_db.committed, lowered == "limit", 2 if "several" in lowered else 100
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", places)
    claiming = sync_db.variant(isolation_level=level)

    def allow(number: int) -> None:
        if is_limit:
            calls.set_limit(Visit, key, number)
        else:
            calls.set_limit(Visit, key, None)
            calls.set_rate(Visit, key, Rate(number, per=timedelta(hours=1)))

    def lower() -> None:
        late = claim(sync_db, Visit.limit_key == key, limit=1) if places > 2 else []
        allow(3)
        (calls.complete if is_limit else calls.release)(late)

    for place in numbers():
        key = str(place)
        visits(sync_db, *[key] * 9)
        allow(4 if places > 2 else 6)
        first = claim(sync_db, Visit.limit_key == key, limit=3 if places > 2 else 4)
        assert len(first) >= 3
        found, waits = list[Any](), False
        with interfering(claiming, place, lower) as threads, claiming.session() as actor:
            with suppress(DBAPIError):  # some engines reject a claim with an old snapshot
                assert actor.find(Visit, Visit.id < 0) == []
                found = actor.claim_many(Visit, Visit.limit_key == key, limit=1)
                waits = bool(threads) and threads[0].is_alive()
            actor.rollback()
        if not threads or (waits and found):
            break
        assert found == []
    assert len(found) == 1


@locks_rows
def test_many_claimers_of_many_new_keys_at_once(sync_db: Database) -> None:
    keys = [str(number) for number in range(40)]
    visits(sync_db, *keys * 3)
    barrier = Barrier(6)

    def claim(actor: Actor) -> set[int]:
        barrier.wait(30)
        found = ids(actor.claim_many(Visit, limit=MANY + 20))
        actor.commit()
        return found

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(claim, contenders(sync_db, 6)))
    assert sum(map(len, found)) == len(set().union(*found)) == 2 * len(keys)
    assert sync_db.session().limits(Visit) == [Limit(key, limit=2, running=2) for key in sorted(keys)]


@pytest.mark.parametrize("level", [None, "REPEATABLE READ"])
def test_keys_created_concurrently_are_left_to_their_creators(sync_db: Database, level: str | None) -> None:
    spec, adapter = spec_of(Visit), adapter_for(sync_db.engine.dialect)
    options = {"isolation_level": level} if level and not sync_db.case.one_writer else {}
    engine = sync_db.variant(**options).session_engine
    with engine.connect() as connection:
        for bind in (engine, connection):
            name = type(bind).__name__
            with QueueSession(bind) as session:
                assert session.find(Visit) == []  # it has begun, with a snapshot of the earlier state
                if not sync_db.case.one_writer:
                    sync_db.committed.set_limit(Visit, f"{name} b", 7)
                keys = [f"{name} {key}" for key in "abc"]
                try:
                    create_slots(session, adapter, spec, keys)
                except DBAPIError:  # in a transaction whose snapshot is too old for it
                    session.rollback()
                    create_slots(session, adapter, spec, keys)
                session.commit()
    found = {each.key: each.limit for each in sync_db.session().limits(Visit)}
    theirs = 2 if sync_db.case.one_writer else 7
    assert found == {f"{name} {key}": theirs if key == "b" else 2 for name in ("Engine", "Connection") for key in "abc"}


@locks_rows
@pytest.mark.filterwarnings("ignore:a claim in a REPEATABLE READ transaction can fail")
def test_a_claim_that_does_not_see_the_slots_it_has_made_keeps_to_the_limit(sync_db: Database) -> None:
    visits(sync_db, *"aaa")
    with sync_db.variant(isolation_level="REPEATABLE READ").session() as actor:
        assert len(actor.find(Visit)) == 3  # from here on its snapshot is current
        with suppress(DBAPIError):  # some engines reject this
            actor.claim_many(Visit, limit=9)
            actor.commit()
    assert count(sync_db, Visit, Visit.status == "running") == held(sync_db) <= 2


def test_a_session_on_a_connection_makes_new_keys_in_its_transaction(sync_db: Database) -> None:
    """It may not be committed, as in tests of applications."""
    visits(sync_db, "a")
    options = {} if sync_db.case.one_writer else {"isolation_level": "READ COMMITTED"}
    with sync_db.variant(**options).session_engine.connect() as connection, connection.begin() as transaction:
        with QueueSession(connection) as session:
            assert session.claim(Visit) is not None
            session.commit()
        transaction.rollback()
    assert sync_db.session().limits(Visit) == []


def test_other_errors_than_that_a_key_exists_are_raised(sync_db: Database) -> None:
    if sync_db.case.name != "sqlite":
        pytest.skip("its trigger is written for SQLite")
    visits(sync_db, "a")
    with sync_db.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refused BEFORE INSERT ON slot BEGIN SELECT RAISE(ABORT, 'no slots today'); END"
        )
    try:
        with sync_db.session() as actor, pytest.raises(DBAPIError, match="no slots today"):
            actor.claim(Visit)
    finally:
        with sync_db.engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER refused")


@pytest.mark.one_engine
def test_the_holder_of_a_slot_fits_into_its_column_whatever_the_primary_key(sync_db: Database) -> None:
    holders = {holder(Claim(Visit, ("long" * 100,), attempt, 7)) for attempt in (1, 2)}
    assert len(holders) == 2
    assert max(map(len, holders)) <= Slot.__table__.c.claimed_by.type.length


def test_a_new_key_is_made_where_the_session_s_schema_is(sync_db: Database) -> None:
    visits(sync_db, "a")
    table = Visit.__table__.schema
    with Session(sync_db.engine) as session:
        session.connection(execution_options={"schema_translate_map": {table: None}})
        create_slots(session, adapter_for(sync_db.engine.dialect), spec_of(Visit), ["a"])
        session.commit()
    assert sync_db.session().limits(Visit) == [Limit("a", limit=2, running=0)]


def test_a_running_task_keeps_the_key_of_its_slot(db: Database) -> None:
    db.insert(Visit, [{"id": 1, "limit_key": "a"}])
    claim = claim_of(db.committed.claim(Visit))
    db.committed.enqueue(Visit, [{"id": 1, "limit_key": "b"}], on_conflict="replace")
    assert row_of(db, claim)["limit_key"] == "a"
    db.committed.heartbeat(claim)


def test_at_most_once_handlers_of_limited_tasks_are_rejected(sync_db: Database) -> None:
    with pytest.raises(ArgumentError, match="would have no effect"):
        Worker(sync_db.sessions()).handler(Visit, mode="at-most-once")(lambda visit: None)


# -- a claim of many limited keys takes as few statements as one of few keys ------------------------------------------


@contextmanager
def sent() -> Iterator[dict[str, int]]:
    """Count the statements and the new connections of all engines within the block."""
    found = {"statements": 0, "connections": 0}

    def statement(*_: Any) -> None:
        found["statements"] += 1

    def connection(*_: Any) -> None:
        found["connections"] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Pool, "connect", connection)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Pool, "connect", connection)


@pytest.mark.parametrize(("known", "limit"), [(0, 3 * MANY), (MANY // 2, MANY), (MANY, 3 * MANY)])
def test_many_keys_cost_a_claim_few_statements(db: Database, known: int, limit: int) -> None:
    keys = [f"{number:03}" for number in range(MANY)]
    visits(db, *keys[:known])
    assert len(claim(db)) == known
    visits(db, *keys)
    with db.session() as actor:
        assert actor.find(Visit, Visit.id < 0) == []  # it has its connection
        actor.rollback()
        with sent() as cost:
            assert len(actor.claim_many(Visit, limit=limit)) == MANY
        actor.commit()
    assert cost["statements"] <= (8 if adapter_for(db.engine.dialect).rows.claims_in_order else 12)
    assert cost["connections"] <= (known < MANY)
    assert len(db.session().limits(Visit)) == MANY
    assert held(db) == MANY + known


def test_a_claim_that_knows_few_keys_reads_as_many_as_it_needs(sync_db: Database) -> None:
    turns._rotations.clear()
    visits(sync_db, *(f"{number:03}" for number in range(300) for _ in range(10)))
    sync_db.committed.complete(sync_db.committed.claim_many(Visit, limit=10))
    with sync_db.session() as actor:
        assert actor.find(Visit, Visit.id < 0) == []
        actor.rollback()
        with sent() as cost:
            assert len(actor.claim_many(Visit, limit=10)) == 10
        actor.rollback()
    assert cost["statements"] <= (6 if adapter_for(sync_db.engine.dialect).rows.claims_in_order else 14)


def test_a_claim_of_all_that_may_start_costs_few_statements(sync_db: Database) -> None:
    visits(sync_db, *(f"{number:02}" for number in range(40) for _ in range(5)))
    for _ in range(2):  # the second claim makes no slots
        turns._rotations.clear()
        with sync_db.session() as actor:
            assert actor.find(Visit, Visit.id < 0) == []
            actor.rollback()
            with sent() as cost:
                found = actor.claim_many(Visit, limit=100)
            actor.complete(found)
            actor.commit()
        assert [task.limit_key for task in found] == [f"{number // 2:02}" for number in range(80)]
    assert cost["statements"] <= (6 if adapter_for(sync_db.engine.dialect).rows.claims_in_order else 11)


def test_full_and_closed_keys_cost_a_claim_few_statements(db: Database) -> None:
    full, closed, draining = ([f"{kind} {n}" for n in range(20)] for kind in ("full", "closed", "draining"))
    visits(db, *full, *full, *draining, *draining)
    assert len(claim(db)) == 80
    with db.begin() as actor:
        for key in closed:
            actor.set_limit(Visit, key, 0)
        for key in draining:
            actor.set_limit(Visit, key, 1)
    visits(db, *(full + closed + draining) * 3, *"abc", None)
    with db.session() as actor:
        assert actor.find(Visit, Visit.id < 0) == []
        actor.rollback()
        with sent() as cost:
            assert [task.limit_key for task in actor.claim_many(Visit, limit=MANY)] == ["a", "b", "c", None]
        actor.rollback()
    # three keys are new, and most of the others have no slots
    assert cost["statements"] <= (10 if adapter_for(db.engine.dialect).rows.claims_in_order else 14)
    assert cost["connections"] <= 1


@pytest.mark.parametrize(("number", "tasks"), [(1, 600), (50, 12), (500, 20), (2_000, 5)])
def test_claims_behind_many_tasks_of_full_keys(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch, number: int, tasks: int
) -> None:
    """They keep the order, and cost few statements, however many keys are full and have tasks that come first."""
    full, others = [f"full {n:04}" for n in range(number)], [f"other {n}" for n in range(9)]
    slots = (
        {"slot_key": key, "slot_number": n, "max_attempts": n and ENDLESS} for key in full + others for n in (0, 1)
    )
    held = {"status": "running", "available_at": TOMORROW}
    free = {"status": "available", "available_at": PAST}
    sync_db.insert(Slot, [{**slot, **(held if slot["slot_key"] in set(full) else free)} for slot in slots])
    visits(sync_db, *full * tasks, priority=-1)
    visits(sync_db, *others * 2)
    costs = dict[tuple[int, str], int]()
    for limit, found in ((5, others[:5]), (40, others)):
        turns._rotations.clear()
        for age in ("new", "old", "fresh"):  # the keys are new, read before, and have just been read
            monkeypatch.setattr(turns, "AGE", 0 if age == "old" else math.inf)
            with sync_db.session() as actor:
                assert actor.find(Visit, Visit.id < 0) == []
                actor.rollback()
                with sent() as sums:
                    assert [task.limit_key for task in actor.claim_many(Visit, limit=limit)] == found
                actor.rollback()
            costs[limit, age] = sums["statements"]
    most = 6 if adapter_for(sync_db.engine.dialect).rows.claims_in_order else 10
    for (limit, known), cost in costs.items():
        few = most if limit == 5 or most == 6 else most + 1  # a claim that finds too few looks for due tasks as well
        assert cost <= (20 if number > MANY_LANES else few), (limit, known)
    assert number > MANY_LANES or costs[5, "fresh"] <= costs[5, "old"] < costs[5, "new"]


def test_a_claim_ends_after_many_full_keys_and_the_next_goes_on(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all keys have been visited in vain."""
    monkeypatch.setattr(turns, "VISITED", 600)
    turns._rotations.clear()
    keys = [f"{n:04}" for n in range(3_000)]
    sync_db.insert(Slot, [{"slot_key": key, "slot_number": 0, "max_attempts": 0} for key in keys])
    visits(sync_db, *keys * 2, "last")

    def claims() -> Iterator[tuple[int, bool]]:
        while True:
            with sync_db.begin() as actor, sent() as cost:
                found = actor.claim_many(Visit, limit=5)
                assert cost["statements"] < 40
                yield len(found), ledger_of(actor.sync_session).is_cut

    found = list[tuple[int, bool]]()
    while not found or (not found[-1][0] and len(found) < 12):
        found += islice(claims(), 1)
    assert found == [*[(0, True)] * (len(found) - 1), (1, True)]
    in_vain = list(takewhile(lambda claim: claim[1], islice(claims(), 12)))
    assert 2 <= len(in_vain) < 12
