"""Claims of messages: the first ones of each key, in order, by one relay at a time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import event, select, update

from sqlqueue import ArgumentError, claim_of
from sqlqueue.outbox import Relay, claim_messages
from tests.outbox.messages import claim, fill, in_order
from tests.support.harness import Database
from tests.support.models import Dispatch, Outgoing, Task
from tests.support.rows import PAST, TOMORROW, end_leases, row, without_waiting


def later(db: Database, key: int, status: str = "retryable") -> None:
    """Make a message due tomorrow, by default as one that has failed."""
    with db.engine.begin() as connection:
        values = {"status": status, "attempt": int(status == "retryable"), "available_at": TOMORROW}
        connection.execute(update(Outgoing.__table__).where(Outgoing.id == key).values(values))


def test_messages_of_a_key_are_claimed_together_and_in_order(db: Database) -> None:
    a1, b1, a2, none, b2, a3 = fill(db, "a", "b", "a", None, "b", "a")
    with db.begin() as actor:
        messages = actor.run(claim_messages, Outgoing, limit=100)
        assert in_order(messages) == [a1, a2, a3, b1, b2, none]
        assert [key for key, _ in groupby(message.message_key for message in messages if message.message_key)] in (
            ["a", "b"],
            ["b", "a"],
        )
        assert {message.status for message in messages} == {"running"}
        (second,) = (message for message in messages if message.id == a2)
        assert second.payload == {"number": 2}
        assert claim_of(second).attempt == 1
        actor.run(lambda session: session.complete(messages))


def test_the_first_of_each_key_comes_before_the_second_of_any(db: Database) -> None:
    a1, a2, _, b1, c1, c2 = fill(db, "a", "a", "a", "b", "c", "c")
    with db.begin() as actor:
        assert claim(actor, limit=4) in ([a1, a2, b1, c1], [a1, b1, c1, c2])


def test_a_claimed_task_keeps_others_from_its_key(db: Database) -> None:
    a1, b1, _, b2, none = fill(db, "a", "b", "a", "b", None)
    with db.session() as first, db.session() as second:
        assert claim(first, Outgoing.message_key == "a", limit=1) == [a1]
        first.commit()
        assert claim(second) == [b1, b2, none]
        second.commit()
        assert claim(first) == []


@pytest.mark.requires("locks_rows")
def test_an_uncommitted_claim_excludes_others_without_making_them_wait(db: Database) -> None:
    a1, b1, _, b2 = fill(db, "a", "b", "a", "b")
    with db.session() as first, db.session() as second:
        assert claim(first, Outgoing.message_key == "a", limit=1) == [a1]
        assert without_waiting(first, lambda: claim(second)) == [b1, b2]


@pytest.mark.requires("locks_rows")
def test_messages_after_one_that_another_claim_has_are_not_locked(db: Database) -> None:
    a1, a2, b1 = fill(db, "a", "a", "b")
    with db.session() as first, db.session() as second:
        assert claim(first, Outgoing.message_key == "a", limit=1) == [a1]
        assert claim(second) == [b1]
        changed = update(Outgoing.__table__).where(Outgoing.id == a2).values(priority=1)
        without_waiting(second, lambda: first.execute(changed))


@pytest.mark.requires("locks_rows")
def test_messages_do_not_overtake_a_locked_one_of_their_key(db: Database) -> None:
    a1, a2, _, b1 = fill(db, "a", "a", "a", "b")
    with db.session() as operator, db.session() as relay:
        assert operator.scalars(select(Outgoing).where(Outgoing.id == a2).with_for_update()).one()
        assert without_waiting(operator, lambda: claim(relay)) == [a1, b1]
        operator.rollback()


@pytest.mark.requires("locks_rows")
def test_messages_do_not_overtake_one_that_is_put_off_after_a_claim_has_found_it(sync_db: Database) -> None:
    a1, _, b1 = fill(sync_db, "a", "a", "b")
    found: list[str] = []

    def put_off(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE" in statement and not found:
            found.append(statement)
            later(sync_db, a1)

    with sync_db.session() as relay:
        event.listen(relay.get_bind(), "before_cursor_execute", put_off)
        try:
            assert claim(relay) == [b1]
        finally:
            event.remove(relay.get_bind(), "before_cursor_execute", put_off)
    assert found


def test_a_retryable_message_holds_back_only_its_key(db: Database) -> None:
    a1, _, b1, b2, _ = fill(db, "a", "a", "b", "b", "b")
    (last,) = fill(db, "b")
    later(db, a1)
    later(db, b2 + 1, status="scheduled")
    with db.begin() as actor:
        assert claim(actor) == [b1, b2]
        assert actor.get(Outgoing, last).status == "available"


def test_held_back_messages_do_not_hide_others(db: Database) -> None:
    (first,) = fill(db, "a")
    db.insert(Outgoing, [{"message_key": "a", "payload": 0}] * 1_001)
    (b1,) = fill(db, "b")
    later(db, first)
    with db.begin() as actor:
        assert claim(actor) == [b1]


def test_final_messages_hold_back_nothing(db: Database) -> None:
    done, a2, dead, b2 = fill(db, "a", "a", "b", "b")
    with db.begin() as actor:
        actor.cancel(Outgoing, Outgoing.id == done)
        actor.discard(Outgoing, Outgoing.id == dead, error="poison")
    with db.begin() as actor:
        assert claim(actor) == [a2, b2]


def test_after_a_lease_has_ended_it_starts_again_from_the_first(db: Database) -> None:
    ids = fill(db, "a", "a", "a")
    with db.begin() as actor:
        assert claim(actor, limit=2) == ids[:2]
    end_leases(db, Outgoing)
    with db.begin() as actor:
        messages = actor.run(claim_messages, Outgoing, limit=100)
        assert [(message.id, message.attempt) for message in messages] == [(ids[0], 2), (ids[1], 2), (ids[2], 1)]


def test_a_limited_claim_is_shared_among_keys(db: Database) -> None:
    keys = [f"{n:02}" for n in range(12)]
    fill(db, *keys, *keys, *keys)
    with db.begin() as actor:
        messages = actor.run(claim_messages, Outgoing, limit=22)
        assert sorted(Counter(message.message_key for message in messages).values()) == [1, 1, *[2] * 10]


def test_the_order_of_a_key_of_two_columns(db: Database) -> None:
    places = [(2025, 7), (2026, 1), (2026, 2), (2027, 0)]
    db.insert(Dispatch, [{"year": y, "number": n, "message_key": "a", "payload": 0} for y, n in reversed(places)])
    with db.begin() as actor:
        assert [message.year for message in actor.run(claim_messages, Dispatch, limit=1)] == [2025]
    with db.engine.begin() as connection:
        connection.execute(update(Dispatch.__table__).values(status="available", available_at=PAST))
    with db.begin() as actor:
        messages = actor.run(claim_messages, Dispatch, limit=4)
        assert [(message.year, message.number) for message in messages] == places


def test_a_rollback_leaves_no_trace(db: Database) -> None:
    ids = fill(db, "a", "a")
    with db.session() as actor:
        messages = actor.run(claim_messages, Outgoing, limit=2)
        actor.rollback()
        assert row(db, messages[0])["attempt"] == 0
        assert claim(actor) == ids


@pytest.mark.one_engine
def test_invalid_arguments_are_rejected(sync_db: Database) -> None:
    with sync_db.session() as actor:
        with pytest.raises(ArgumentError, match="Task is not an outbox: derive it from"):
            actor.run(claim_messages, Task, limit=1)
        with pytest.raises(ArgumentError, match="limit=0"):
            actor.run(claim_messages, Outgoing, limit=0)
        with pytest.raises(ArgumentError, match="lease="):
            actor.run(claim_messages, Outgoing, limit=1, lease=timedelta(0))
    with pytest.raises(ArgumentError, match="Task is not an outbox"):
        Relay(sync_db.sessions(), Task, print)  # type: ignore[type-var]
    with pytest.raises(ArgumentError, match="batch=0"):
        Relay(sync_db.sessions(), Outgoing, print, batch=0)
    with pytest.raises(ArgumentError, match="give a function of one argument, the list of messages"):
        Relay(sync_db.sessions(), Outgoing, lambda: None)  # type: ignore[misc,arg-type]
