"""Limits are set and changed for each key, and models that cannot have limits are refused."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Identity, Integer, event
from sqlalchemy.orm import DeclarativeBase, mapped_column

from sqlqueue import ArgumentError, ConfigurationError, Limit, LimitMixin, QueueMixin, QueueOptions
from tests.suite.limited import claim, complete, locks_rows, set_limit, visits
from tests.support.harness import Database
from tests.support.models import Slot, SQLSlot, Task, Visit
from tests.support.rows import contenders, ids, without_waiting
from tests.support.workers import seen


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
        complete(db, [running.pop(done)])
        more = claim(db)
        assert len(more) == allowed
        running += more
    set_limit(db, 0)
    complete(db, running)
    assert claim(db) == []
    assert db.session().limits(Visit) == [Limit("a", limit=0, running=0)]
    set_limit(db, 3)
    assert len(claim(db)) == 3
    assert db.session().limits(Visit) == [Limit("a", limit=3, running=3)]


def test_the_first_limits_by_key(sync_db: Database) -> None:
    with sync_db.begin() as session:
        for key in "cab":
            session.set_limit(Visit, key, 1)
    assert [each.key for each in sync_db.session().limits(Visit, first=2)] == ["a", "b"]
    with pytest.raises(ArgumentError, match="first"):
        sync_db.session().limits(Visit, first=0)


def test_tasks_that_may_not_run_cost_a_claim_nothing(sync_db: Database) -> None:
    assert claim(sync_db) == []  # a connection and a server that are already initialized
    with sync_db.session() as actor, seen(sync_db, "before_cursor_execute") as before:
        assert actor.claim(Visit) is None
    visits(sync_db, *["a"] * 10)
    set_limit(sync_db, 0)
    with sync_db.session() as actor, seen(sync_db, "before_cursor_execute") as after:
        assert actor.claim(Visit) is None
    assert len(after) == len(before)


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


def test_the_highest_limit_is_set_and_lowered_in_parts_of_bounded_size(sync_db: Database) -> None:
    largest, sizes = 10_000, []

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


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 1.5])
def test_invalid_initial_limits(limit: Any) -> None:
    with pytest.raises(ArgumentError, match="give an integer from 1 to 10,000"):
        QueueOptions(slots=Slot, limit=limit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Task, "a", 1), "Task has no limits: derive it from LimitMixin"),
        ((Visit, "a", -1), "limit=-1: give an integer from 0 to 10,000"),
        ((Visit, "a", 10_001), "limit=10001: give an integer from 0 to 10,000"),
        ((Visit, "a", 10**20), "limit=1"),
        ((Visit, "a", True), "limit=True"),
        ((Visit, "", 1), "key='': give a non-empty string"),
        ((Visit, 7, 1), "key=7"),
    ],
)
def test_invalid_limits(sync_db: Database, arguments: tuple[Any, ...], message: str) -> None:
    with sync_db.session() as actor, pytest.raises(ArgumentError, match=message):
        actor.set_limit(*arguments)
