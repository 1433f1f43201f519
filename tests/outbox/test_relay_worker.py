"""The relay as a worker: it wakes up, extends leases, and stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from sqlqueue import QueueSession, Worker
from sqlqueue.outbox import Relay
from sqlqueue.worker import fetcher as poller
from tests.outbox.messages import Notes, claim, fill, relay_of
from tests.outbox.relays import STRAIGHT_ON, drained, states
from tests.suite.test_unreadable_rows import riddles
from tests.support.harness import Database
from tests.support.models import Dispatch, Outgoing
from tests.support.workers import AT_ONCE, LEASE, LONG, PATIENCE, Workers, eventually


def test_an_idle_relay_wakes_up_on_enqueue(db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    notes = Notes()
    engine = db.variant(pool_size=20)
    workers.start(relay_of(engine, notes, batch=2, poll=LONG), engine=engine)
    time.sleep(0.5)
    ids = fill(db, *["a"] * 7)
    eventually(lambda: notes.published == ids, AT_ONCE)
    eventually(lambda: drained(db))


def test_a_relay_claims_at_once_after_messages_that_cannot_be_read(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    notes = Notes()
    engine = db.variant(pool_size=20)
    *broken, last = fill(db, *"abcdefgh")
    with riddles(Outgoing, *broken):
        workers.start(relay_of(engine, notes, batch=2, poll=LONG), engine=engine)
        eventually(lambda: notes.published == [last], AT_ONCE)


def test_a_lease_is_extended_while_the_publisher_is_at_it(db: Database, workers: Workers) -> None:
    fill(db, "a")
    ended = Event()
    engine = db.variant(pool_size=20)

    async def take_long(messages: Sequence[Any]) -> None:
        while not ended.is_set():
            await asyncio.sleep(0.01)

    def wait_long(messages: Sequence[Any]) -> None:
        ended.wait()

    publish = take_long if db.is_async else wait_long
    relay = Relay(engine.sessions(), Outgoing, publish, lease=LEASE, notify=False)
    workers.start(relay, engine=engine)
    eventually(lambda: states(db) and set(states(db).values()) == {"running"})
    time.sleep(1.2 * LEASE.total_seconds())
    with db.begin() as actor:
        assert claim(actor) == []
    ended.set()
    eventually(lambda: drained(db))


def test_stopping_waits_for_the_call_that_is_made_and_makes_no_other(db: Database, workers: Workers) -> None:
    ids = fill(db, "a", "a", "a")
    notes, arrived, ended = Notes(), Event(), Event()
    engine = db.variant(pool_size=20)

    async def coroutine(messages: Sequence[Any]) -> None:
        await asyncio.to_thread(publish, messages)

    def publish(messages: Sequence[Any]) -> None:
        notes(messages)
        arrived.set()
        ended.wait()
        if len(messages) > 1:
            raise ConnectionError

    relay = Relay(engine.sessions(), Outgoing, coroutine if db.is_async else publish, batch=2, notify=False)
    running = workers.start(relay, engine=engine)
    assert arrived.wait(PATIENCE)
    relay.stop()
    time.sleep(0.1)
    assert not running.ended
    ended.set()
    running.wait()
    assert notes.calls == [ids[:2]]
    assert states(db) == dict.fromkeys(ids, "available")


def test_a_publisher_that_hangs_is_left_and_others_go_on_at_once(db: Database, workers: Workers) -> None:
    ids = fill(db, "a", "a")
    arrived, ended = Event(), Event()
    engine = db.variant(pool_size=20)

    async def coroutine(messages: Sequence[Any]) -> None:
        arrived.set()
        await asyncio.sleep(60)

    def function(messages: Sequence[Any]) -> None:
        arrived.set()
        ended.wait(60)

    publish = coroutine if db.is_async else function
    relay = Relay(engine.sessions(), Outgoing, publish, grace=timedelta(0), notify=False)
    running = workers.start(relay, engine=engine)
    assert arrived.wait(PATIENCE)
    running.stop()
    ended.set()
    assert states(db) == dict.fromkeys(ids, "available")


def test_a_relay_may_have_handlers_too(sync_db: Database, workers: Workers) -> None:
    engine = sync_db.variant(pool_size=20)
    notes = Notes()
    relay = relay_of(engine, notes, poll=STRAIGHT_ON)
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
        workers.start(relay_of(db, notes))
        eventually(lambda: states(db) == {a1: "scheduled", a2: "available"})
    assert notes.published == [b1, b2]
