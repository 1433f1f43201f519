"""How many tasks with the same key run at once: at most the limit, despite open transactions, crashes and changes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, Integer, delete, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ClaimLostError, ConfigurationError, Limit, LimitMixin, QueueMixin, QueueOptions, kinds
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.statements import LANES
from sqlqueue.operations import bulk, turns, upkeep
from sqlqueue.operations.claiming import ClaimQuery
from sqlqueue.queue.spec import spec_of
from sqlqueue.sql import EDGE
from tests.suite.limited import claim, held, locks_rows, set_limit, visits
from tests.suite.settlements import ENDINGS, SETTLINGS
from tests.suite.test_plans import reading
from tests.support.harness import Database
from tests.support.models import Base, Slot, SQLSlot, Visit
from tests.support.rows import PAST, TOMORROW, analyze, contenders, count, end_leases, ids, insert_many, without_waiting
from tests.support.workers import seen

leases = pytest.mark.parametrize("lease", ["default", None])


@leases
def test_one_transaction_gets_at_most_the_limit(db: Database, lease: Any) -> None:
    visits(db, *"aaab", None, *"bbc", None)
    with db.session() as actor:
        claimed = actor.claim_many(Visit, limit=20, lease=lease)
        assert [task.id for task in claimed] == [1, 2, 4, 5, 6, 8, 9]  # in the order of the queue
        assert actor.claim(Visit, lease=lease) is None
        actor.rollback()
        assert [task.id for task in actor.claim_many(Visit, limit=3, lease=lease)] == [1, 2, 4]
        actor.rollback()


def test_a_claim_takes_more_slots_than_a_statement_names(db: Database) -> None:
    db.committed.set_limit(Visit, "a", 700)
    db.committed.enqueue(Visit, [{"limit_key": "a"}] * 1_500)
    with db.session() as actor:
        claimed = actor.claim_many(Visit, limit=600)
        assert len(claimed) == 600
        assert len(actor.claim_many(Visit, limit=600)) == 100
        assert actor.claim(Visit) is None
        actor.complete(claimed)
        assert len(actor.claim_many(Visit, limit=900)) == 600


@locks_rows
@leases
def test_uncommitted_claims_count(db: Database, lease: Any) -> None:
    visits(db, *"aaab")
    a, b = contenders(db)
    assert ids(a.claim_many(Visit, Visit.limit_key == "a", limit=1, lease=lease)) == {1}
    assert ids(without_waiting(a, lambda: b.claim_many(Visit, limit=9, lease=lease))) == {2, 4}
    a.rollback()
    assert ids(without_waiting(a, lambda: b.claim_many(Visit, limit=9, lease=lease))) == {1}
    b.rollback()


@locks_rows
def test_slots_are_found_behind_those_that_others_have_locked(db: Database) -> None:
    set_limit(db, 50)
    visits(db, *["a"] * 60)
    a, b = contenders(db)
    assert len(a.claim_many(Visit, limit=20)) == 20
    assert len(without_waiting(a, lambda: b.claim_many(Visit, limit=20))) == 20
    b.rollback()
    a.rollback()


@locks_rows
def test_no_slot_is_taken_twice_however_often_slots_are_read(db: Database) -> None:
    set_limit(db, 17)
    visits(db, *["a"] * 40)
    *others, last = contenders(db, 4)
    assert [len(other.claim_many(Visit, limit=5)) for other in others] == [5, 5, 5]
    assert len(last.claim_many(Visit, limit=5)) == 2
    for actor in (*others, last):
        actor.rollback()


def test_a_pool_of_one_connection_is_enough_for_a_new_key(db: Database) -> None:
    visits(db, "a")
    alone = db.variant(pool_size=1, max_overflow=0, pool_timeout=1)
    with alone.session() as actor:
        assert actor.claim(Visit) is not None
        actor.rollback()


@pytest.mark.parametrize("batch", [20, 180])
def test_others_are_found_behind_many_of_full_keys(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(adapter_for(sync_db.engine.dialect).rows, "batch", batch)
    full = [f"full {number}" for number in range(100)]
    visits(sync_db, *full * 10, *"ab", None)
    held = {"slot_number": 1, "status": "running", "available_at": TOMORROW}
    sync_db.insert(Slot, [{"slot_key": key, **held, "slot_number": number} for key in full for number in (0, 1)])
    analyze(sync_db, Visit)
    with sync_db.session() as actor, seen(sync_db, "before_cursor_execute") as statements:
        assert ids(actor.claim_many(Visit, limit=5)) == {1_001, 1_002, 1_003}
        assert len(statements) < 100
        if not adapter_for(sync_db.engine.dialect).rows.skips_values:  # there are engines with a limit
            assert max(len(parameters) for _, _, _, parameters, *_ in statements) < max(batch, 2 * LANES) + 20
        actor.rollback()


@locks_rows
def test_others_are_found_behind_many_keys_that_others_lock(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_for(sync_db.engine.dialect).rows, "batch", 4)
    keys = [str(number) for number in range(20)]
    sync_db.insert(Slot, [{"slot_key": key, "slot_number": number} for key in [*keys, *"ab"] for number in (0, 1)])
    visits(sync_db, *keys * 2, *"ab", None)
    a, b = contenders(sync_db)
    assert len(a.claim_many(Visit, limit=20)) == 20
    with seen(sync_db, "before_cursor_execute") as statements:
        first = ids(b.claim_many(Visit, limit=2))
        assert len(first) == 2
        assert first | ids(b.claim_many(Visit, limit=9)) == {41, 42, 43}
    assert max(len(parameters) for _, _, _, parameters, *_ in statements) < 2 * LANES + 20
    b.rollback()
    a.rollback()


def test_tasks_at_their_limit_do_not_count_as_claimable(db: Database) -> None:
    """Otherwise a tenant whose limit is reached looks like a queue that falls behind."""
    visits(db, *"aaaa", available_at=PAST, priority=-1)
    visits(db, *"bb", None)
    visits(db, "a", status="scheduled", available_at=PAST)
    running = claim(db, Visit.limit_key == "a")
    found = db.committed.overview(Visit)
    assert (len(running), found.claimable, found.limited, found.overdue, found["available"]) == (2, 3, 3, 0, 5)
    assert found.oldest_claimable is not None
    assert found.oldest_claimable < timedelta(hours=1)
    db.committed.complete(running[:1])
    found = db.committed.overview(Visit)
    assert (found.claimable, found.limited, found.overdue) == (6, 0, 1)
    set_limit(db, 5)
    assert db.committed.overview(Visit).limited == 0
    assert found.oldest_claimable is not None
    assert found.oldest_claimable > timedelta(hours=1)


@leases
def test_a_slot_is_free_once_its_task_is_settled(db: Database, lease: Any) -> None:
    visits(db, *["a"] * 20)
    for call in ENDINGS:
        with db.begin() as actor:
            claimed = actor.claim_many(Visit, limit=9, lease=lease)
            assert len(claimed) == 2
            SETTLINGS[call](actor, claimed)
            assert len(actor.claim_many(Visit, limit=9)) == 2
            actor.rollback()
            claimed = actor.claim_many(Visit, limit=9, lease=lease)
            SETTLINGS[call](actor, claimed)
    assert held(db) == 0


@pytest.mark.parametrize("end", [lambda a, *w: a.cancel(Visit, *w), lambda a, *w: a.discard(Visit, *w, error="no")])
def test_tasks_ended_by_criteria_free_their_slots(db: Database, end: Any) -> None:
    visits(db, *["a"] * 6, *"bb")
    first, second, *others = claim(db)
    assert len(others) == 2
    with db.begin() as actor:
        assert end(actor, Visit.limit_key == "a", Visit.id.in_([*first.identity, 3])) == 2
    assert [each.identity for each in claim(db)] == [(4,)]
    with db.begin() as actor:
        actor.complete(second)  # belongs to no other task
        assert end(actor) == 5
        with pytest.raises(ClaimLostError):
            actor.complete(others)
    assert held(db) == 0


@locks_rows
def test_tasks_released_during_a_cancel_are_cancelled_too(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    visits(sync_db, *"ab", None)
    claims, end = claim(sync_db), bulk._end_running

    def released_first(*arguments: Any) -> int:
        sync_db.committed.release(claims[:1])
        return end(*arguments)

    monkeypatch.setattr(bulk, "_end_running", released_first)
    with sync_db.variant(isolation_level="READ COMMITTED").begin() as actor:
        assert actor.cancel(Visit) == 3
    assert count(sync_db, Visit, Visit.status == "cancelled") == 3
    assert held(sync_db) == 0


def test_a_slot_is_taken_once_however_long_the_transaction_lasts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(Visit)
    monkeypatch.setitem(spec.__dict__, "options", replace(spec.options, lease=timedelta(milliseconds=1)))
    visits(db, *"aaaa")
    with db.session() as actor:
        assert ids(actor.claim_many(Visit, limit=2, lease=None)) == {1, 2}
        time.sleep(0.01)
        assert actor.claim(Visit, lease=None) is None
        actor.rollback()


def test_rolling_back_a_savepoint_releases_its_claims(db: Database) -> None:
    visits(db, *"aaa")
    with db.session() as actor:
        assert actor.claim(Visit).id == 1
        with suppress(InterruptedError), actor.begin_nested():
            assert actor.claim(Visit).id == 2
            raise InterruptedError
        assert ids(actor.claim_many(Visit, limit=9)) == {2}
        actor.rollback()


def test_consumed_at_once(db: Database) -> None:
    visits(db, *"aaa")
    with db.begin() as actor:
        assert [ids(actor.consume_many(Visit, limit=9)) for _ in range(3)] == [{1, 2}, {3}, set()]
    assert count(db, Visit, Visit.status == "completed") == 3


def test_slots_of_the_dead_come_back_with_their_leases(db: Database) -> None:
    visits(db, *"aaa")
    dead = claim(db)
    assert len(dead) == 2
    assert claim(db) == []
    end_leases(db, Visit)
    end_leases(db, Slot)
    again = claim(db)
    assert [each.attempt for each in again] == [1, 2]  # available tasks come before due ones
    db.committed.complete(again)
    with db.begin() as actor, pytest.raises(ClaimLostError):
        actor.complete([each for each in dead if each.identity == again[1].identity])
    assert len(claim(db)) == 1


def test_a_heartbeat_keeps_the_slot(db: Database) -> None:
    visits(db, *"aaa", None)
    claims = claim(db)
    assert len(claims) == 3
    end_leases(db, Slot)
    db.committed.heartbeat(claims, timedelta(hours=1))
    assert claim(db) == []
    end_leases(db, Slot)
    assert len(claim(db)) == 1  # has taken one of them over
    with db.begin() as actor, pytest.raises(ClaimLostError) as lost:
        actor.heartbeat(claims)
    assert len(lost.value.claims) == 1


@locks_rows
def test_slots_that_others_have_locked_are_not_lost(sync_db: Database) -> None:
    """A worker does not wait for them: the leases of its other tasks would end."""
    visits(sync_db, "a", "b")
    claims = claim(sync_db)
    a, b = contenders(sync_db)
    a.set_limit(Visit, "a", 5)
    assert without_waiting(a, lambda: upkeep.extend(b.session, claims, timedelta(hours=1))) == []
    b.commit()
    a.rollback()
    assert held(sync_db) == 2


# -- keys that share a queue, and backlogs of full keys ---------------------------------------------------------------


class Fetch(LimitMixin, Base):
    __tablename__ = "fetch"
    __queue__ = QueueOptions(fair="limit_key", weight={"gold": 2}, slots=Slot, limit=3)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


def test_keys_share_a_queue_within_their_limits(db: Database) -> None:
    set_limit(db, 0, "closed")
    set_limit(db, 10, "gold")
    for key in ("closed", "a", "gold", None):
        db.insert(Fetch, [{"limit_key": key}] * 30)
    with db.session() as actor:
        first = Counter(task.limit_key for task in actor.claim_many(Fetch, limit=8))
        assert first == {"a": 2, "gold": 4, None: 2}
        rest = Counter(task.limit_key for task in actor.claim_many(Fetch, limit=9))
        assert rest["a"] == 1
        assert rest["gold"] == pytest.approx(6, abs=1)
        assert Counter(task.limit_key for task in actor.claim_many(Fetch, limit=99)) + first + rest == {
            "a": 3,
            "gold": 10,
            None: 30,
        }
        assert actor.claim(Fetch) is None
        actor.rollback()


def test_keys_with_limits_take_turns_although_they_are_read_again(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AGE", -1.0)
    sync_db.insert(Fetch, [{"limit_key": key} for key in "abc"] * 9)
    found = Counter[str]()
    for _ in range(9):
        with sync_db.begin() as actor:
            task = actor.claim(Fetch)
            actor.complete(task)
            found[task.limit_key] += 1
    assert found == {"a": 3, "b": 3, "c": 3}


@pytest.mark.one_engine
def test_a_turn_is_no_longer_than_a_key_has_slots(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.random, "randrange", lambda _: 0)  # it begins anywhere
    sync_db.insert(Fetch, [{"limit_key": key} for key in ("a", "gold")] * 9)
    rotation, spec = turns.Rotation(spec_of(Fetch), turns.Keys()), spec_of(Fetch)
    with sync_db.session() as session:
        adapter, pick = adapter_for(sync_db.engine.dialect), ClaimQuery(spec).steps[0](9)
        rotation.read(adapter, session.session, pick, 9)
    rotation.run_out({None})
    assert rotation.grant(9, 9, (), lambda _: 1) == {"a": 1, "gold": 1}
    assert rotation.grant(7, 7, (), lambda _: 9) == {"a": 3, "gold": 4}  # what it could not use is not saved up


def test_the_backlog_of_a_full_key_costs_a_claim_nothing(sync_db: Database) -> None:
    def median() -> int:
        amounts = []
        for _ in range(5):
            with other.session() as session, reading(session, sync_db.case) as read:
                assert {task.limit_key for task in session.claim_many(Visit, limit=6)} == {"b", "c", "d"}
            amounts.append(read.amount)
        return sorted(amounts)[2]

    other = sync_db.read_committed
    waiting = {"limit_key": "a", "priority": -1}
    sync_db.insert(Visit, [waiting] * 500)
    sync_db.insert(Visit, [{"limit_key": key} for key in "bcd"] * 30)
    for key in "abcd":
        set_limit(sync_db, 0 if key == "a" else 2, key)
    analyze(sync_db, Visit)
    small = median()
    sync_db.execute(delete(Visit))
    insert_many(sync_db, Visit, waiting)
    sync_db.insert(Visit, [{"limit_key": key} for key in "bcd"] * 30)
    analyze(sync_db, Visit)
    assert median() <= 2 * small + 100


@pytest.mark.one_engine
def test_keys_that_another_thread_has_visited_since_they_were_read_have_no_second_turn(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_db.insert(Fetch, [{"limit_key": key} for key in ("a", "b", "c")])
    rotation, spec = turns.Rotation(spec_of(Fetch), turns.Keys()), spec_of(Fetch)
    adapter, pick = adapter_for(sync_db.engine.dialect), ClaimQuery(spec).steps[0](1)
    after = rotation.keys.after

    def overtaken(*arguments: Any, **options: Any) -> Any:
        found = after(*arguments, **options)
        monkeypatch.setattr(rotation.keys, "after", after)
        rotation.read(adapter, session.session, pick, 1)
        assert rotation.grant(1, 1, {None}) == {"a": 1}
        return found

    with sync_db.session() as session:
        rotation.return_to(EDGE)
        monkeypatch.setattr(rotation.keys, "after", overtaken)
        rotation.read(adapter, session.session, pick, 1)
        assert rotation.grant(1, 1, {None}) == {"b": 1}


# -- limits are set and changed for each key, and models that cannot have limits are refused --------------------------


def test_a_limit_is_changed_while_tasks_run(db: Database) -> None:
    visits(db, *["a"] * 20)
    assert db.session().limits(Visit) == []
    running = claim(db)
    set_limit(db, 4)
    running += claim(db)
    assert len(running) == 4
    set_limit(db, 2)
    assert db.session().limits(Visit) == [Limit("a", limit=2, running=4)]
    for done, allowed in ((-1, 0), (0, 0), (0, 1)):  # at first, more run than allowed
        db.committed.complete([running.pop(done)])
        more = claim(db)
        assert len(more) == allowed
        running += more
    set_limit(db, 0)
    db.committed.complete(running)
    assert claim(db) == []
    assert db.session().limits(Visit) == [Limit("a", limit=0, running=0)]
    assert db.committed.overview(Visit).claimable == 0
    set_limit(db, 3)
    running = claim(db)
    assert len(running) == 3
    assert db.session().limits(Visit) == [Limit("a", limit=3, running=3)]
    db.committed.complete(running[1:])
    set_limit(db, 2)
    assert len(claim(db)) == 1


def test_a_lowered_limit_stops_no_other_key(db: Database) -> None:
    visits(db, *"aabbab")
    running = claim(db)
    assert len(running) == 4
    for key in "ab":
        set_limit(db, 1, key)
    db.committed.complete(running[2:])
    assert [claim.identity for claim in claim(db)] == [(6,)]


def test_the_first_limits_by_key(sync_db: Database) -> None:
    with sync_db.begin() as session:
        for key in "cab":
            session.set_limit(Visit, key, 1)
    assert [each.key for each in sync_db.session().limits(Visit, first=2)] == ["a", "b"]


def test_tasks_that_may_not_run_cost_a_claim_a_look_at_their_key(sync_db: Database) -> None:
    assert claim(sync_db) == []  # a connection and a server that are already initialized
    with sync_db.session() as actor, seen(sync_db, "before_cursor_execute") as before:
        assert actor.claim(Visit) is None
    visits(sync_db, *["a"] * 10)
    set_limit(sync_db, 0)
    with sync_db.session() as actor, seen(sync_db, "before_cursor_execute") as after:
        assert actor.claim(Visit) is None
    assert len(after) <= len(before) + 1


@locks_rows
@pytest.mark.parametrize("known", [True, False])
def test_claims_do_not_wait_for_a_limit_being_set(db: Database, known: bool) -> None:
    visits(db, *"aab")
    if known:
        set_limit(db, 2)
    a, b = contenders(db)
    a.set_limit(Visit, "a", 5)
    found = ids(without_waiting(a, lambda: b.claim_many(Visit, limit=9)))
    assert found >= {3}
    b.rollback()


class Other(DeclarativeBase):
    pass


@pytest.mark.parametrize(
    ("mixin", "options", "message"),
    [
        (LimitMixin, {}, "slots= is missing: name the model that derives from SlotMixin"),
        (LimitMixin, {"slots": Visit}, "slots= must name a model of slots: Visit does not derive from SlotMixin"),
        (QueueMixin, {"slots": Slot}, "slots= is for models that derive from LimitMixin"),
        (QueueMixin, {"partitions": ("kind",)}, "partitions names 'kind', which is not a column of"),
    ],
)
def test_models_that_cannot_be_limited(mixin: Any, options: dict[str, Any], message: str) -> None:
    body = {
        "__tablename__": message,
        "__queue__": QueueOptions(**options),
        "id": mapped_column(Integer, Identity(), primary_key=True),
    }
    with pytest.raises(ConfigurationError, match=message):
        type("Wrong", (mixin, Other), body)


def test_an_inheriting_class_has_the_slots_of_its_base() -> None:
    own = {"__queue__": QueueOptions(slots=SQLSlot)}
    with pytest.raises(ConfigurationError, match="slots and stages; set them on the base class"):
        type("Elsewhere", (Visit,), own)


def test_a_limit_is_set_and_lowered_in_parts_of_bounded_size(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds.limits, "_BATCH", 100)
    largest, sizes = 1_000, []

    @event.listens_for(sync_db.session_engine, "before_execute")
    def see(_connection: Any, statement: Any, many: Any, *_rest: object) -> None:
        if statement.is_insert:
            sizes.append(len(many))

    with sync_db.session() as actor:
        actor.set_limit(Visit, "a", largest)
        assert [(each.limit, each.running) for each in actor.limits(Visit)] == [(largest, 0)]
        actor.set_limit(Visit, "a", 3)
        assert [(each.limit, each.running) for each in actor.limits(Visit)] == [(3, 0)]
        actor.rollback()
    event.remove(sync_db.session_engine, "before_execute", see)
    assert max(sizes) <= largest // 10
    assert sum(sizes) > largest * 0.9
