"""The relay as a worker: it wakes up, extends leases, and stops."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from sqlqueue import QueueSession, Worker
from sqlqueue.worker import fetcher as poller
from tests.outbox.messages import Notes, claim, drained, fill, relay_of, start_relay, states
from tests.suite.test_unreadable_rows import riddles
from tests.support.harness import Database
from tests.support.models import Dispatch, Outgoing
from tests.support.workers import AT_ONCE, LEASE, LONG, PATIENCE, POLL, Workers, eventually


def test_an_idle_relay_wakes_up_on_enqueue(db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    notes = Notes()
    start_relay(db, workers, notes, batch=2, poll=LONG)
    time.sleep(0.5)
    ids = fill(db, *["a"] * 7)
    eventually(lambda: notes.published == ids, AT_ONCE)
    eventually(lambda: drained(db))


def test_a_relay_claims_at_once_after_messages_that_cannot_be_read(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    notes = Notes()
    *broken, last = fill(db, *"abcdefgh")
    with riddles(Outgoing, *broken):
        start_relay(db, workers, notes, batch=2, poll=LONG)
        eventually(lambda: notes.published == [last], AT_ONCE)


def test_a_lease_is_extended_while_the_publisher_is_at_it(db: Database, workers: Workers) -> None:
    fill(db, "a")
    ended = Event()
    start_relay(db, workers, lambda _: ended.wait(PATIENCE), lease=LEASE)
    eventually(lambda: states(db) and set(states(db).values()) == {"running"})
    time.sleep(1.2 * LEASE.total_seconds())
    with db.begin() as actor:
        assert claim(actor) == []
    ended.set()
    eventually(lambda: drained(db))


def test_stopping_waits_for_the_call_that_is_made_and_makes_no_other(db: Database, workers: Workers) -> None:
    ids = fill(db, "a", "a", "a")
    notes, arrived, ended = Notes(), Event(), Event()

    def publish(messages: Sequence[Any]) -> None:
        notes(messages)
        arrived.set()
        ended.wait(PATIENCE)
        if len(messages) > 1:
            raise ConnectionError

    running = start_relay(db, workers, publish, batch=2)
    assert arrived.wait(PATIENCE)
    running.worker.stop()
    time.sleep(0.1)
    assert not running.ended
    ended.set()
    running.wait()
    assert notes.calls == [ids[:2]]
    assert states(db) == dict.fromkeys(ids, "available")


def test_a_publisher_that_hangs_is_left_and_others_go_on_at_once(db: Database, workers: Workers) -> None:
    ids = fill(db, "a", "a")
    arrived, ended = Event(), Event()

    def publish(messages: Sequence[Any]) -> None:
        arrived.set()
        ended.wait(PATIENCE)

    running = start_relay(db, workers, publish, grace=timedelta(0))
    assert arrived.wait(PATIENCE)
    running.stop()
    ended.set()
    assert states(db) == dict.fromkeys(ids, "available")


@pytest.mark.one_engine
def test_a_relay_may_have_handlers_too(sync_db: Database, workers: Workers) -> None:
    engine = sync_db.variant(pool_size=20)
    notes = Notes()
    relay = relay_of(engine, notes, poll=POLL)
    assert isinstance(relay, Worker)

    @relay.handler(Dispatch)
    def handle(session: QueueSession, dispatch: Dispatch) -> None:
        session.add(Outgoing(payload=dispatch.payload))

    workers.start(relay, engine=engine)
    sync_db.insert(Dispatch, [{"year": 1, "number": 1, "payload": "x"}])
    eventually(lambda: len(notes.published) == 1)


def test_a_message_that_cannot_be_read_holds_up_its_key_alone(db: Database, workers: Workers) -> None:
    a1, b1, a2, b2 = fill(db, "a", "b", "a", "b")
    notes = Notes()
    with riddles(Outgoing, a1):
        start_relay(db, workers, notes)
        eventually(lambda: states(db) == {a1: "scheduled", a2: "available"})
    assert notes.published == [b1, b2]
