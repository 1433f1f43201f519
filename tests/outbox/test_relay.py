"""The relay publishes each message at least once, those of a key in order, whatever fails."""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from sqlqueue import Cancel, Discard, Snooze
from sqlqueue.outbox import Relay, claim_messages
from sqlqueue.testing import drain
from tests.outbox.messages import Notes, claim, drained, fill, first_occurrences, relay_of, start_relay, states
from tests.support.harness import Database
from tests.support.models import Dispatch, Outgoing
from tests.support.rows import count, end_leases
from tests.support.workers import Workers, by_id, eventually


def once(db: Database, relay: Relay) -> int:
    published: int = db.session().pass_to(lambda _: relay.serve_once()) if db.is_async else relay.relay_once()
    return published


def relay_once(db: Database, publish: Callable[[Any], Any], model: Any = Outgoing, **options: Any) -> int:
    """Return the number of messages that a new relay has published in one call."""
    return once(db, relay_of(db, publish, model, **options))


def test_all_are_published_in_one_call_and_gone(db: Database) -> None:
    a1, b1, a2 = fill(db, "a", "b", "a")
    notes = Notes()
    relay = relay_of(db.variant(), notes)
    assert relay.relay_once() == 3
    assert notes.calls in ([[a1, a2, b1]], [[b1, a1, a2]])
    assert states(db) == {}
    assert relay.relay_once() == 0


def test_message_ids_are_unique(sync_db: Database) -> None:
    relay = relay_of(sync_db, Notes())
    (first,) = fill(sync_db, "a")
    once(sync_db, relay)
    (second,) = fill(sync_db, "a")
    assert second > first


def test_published_messages_are_kept_if_configured(sync_db: Database) -> None:
    sync_db.insert(Dispatch, [{"year": 1, "number": n, "message_key": "a", "payload": {"n": n}} for n in range(3)])
    seen: list[Any] = []
    assert relay_once(sync_db, lambda messages: seen.extend(m.payload["n"] for m in messages), Dispatch) == 3
    assert seen == [0, 1, 2]
    assert count(sync_db, Dispatch, Dispatch.status == "completed") == 3


@pytest.mark.one_engine
def test_a_call_publishes_at_most_a_batch(sync_db: Database) -> None:
    ids = fill(sync_db, *["a"] * 5)
    notes = Notes()
    relay = relay_of(sync_db, notes, batch=2)
    assert [once(sync_db, relay) for _ in range(4)] == [2, 2, 1, 0]
    assert notes.calls == [ids[:2], ids[2:4], ids[4:]]


@pytest.mark.one_engine
@pytest.mark.parametrize("error", [CancelledError(), SystemExit()])
def test_a_publisher_whose_request_is_cancelled_has_failed(db: Database, error: BaseException) -> None:
    """Something that it awaited was cancelled, not the publisher itself."""
    bad, _ = fill(db, "a", "b", max_attempts=1)
    assert relay_once(db, Notes(lambda message: message.id == bad, error)) == 1
    assert states(db) == {bad: "discarded"}
    assert by_id(db, Outgoing.error) == {bad: type(error).__name__}


@pytest.mark.requires("narrow_options")
def test_an_error_that_the_character_set_of_a_connection_lacks(db: Database) -> None:
    """It is recorded in ASCII, and keeps no other message from being completed."""
    bad, _ = fill(db, "a", "b", max_attempts=1)
    engine = db.variant(connect_args=db.case.narrow_options)
    assert relay_once(engine, Notes(lambda message: message.id == bad, ValueError("5 \N{EURO SIGN}"))) == 1
    assert states(db) == {bad: "discarded"}
    assert by_id(db, Outgoing.error) == {bad: "ValueError: 5 \\u20ac"}


def test_a_failure_that_the_database_rejects_in_ascii_as_well_is_raised(db: Database) -> None:
    (bad,) = fill(db, "a")
    engine = db.variant()
    event.listen(engine.session_engine, "before_cursor_execute", reject_failures)
    with pytest.raises(DBAPIError, match="no failure is accepted"):
        relay_once(engine, Notes(lambda message: message.id == bad))
    assert states(db) == {bad: "running"}


def reject_failures(_: Any, __: Any, ___: Any, parameters: object, *____: object) -> None:
    if "does not answer" in str(parameters):
        raise DBAPIError(None, None, Exception("no failure is accepted"))


@pytest.mark.one_engine
def test_a_publisher_does_not_see_what_another_call_has_set(db: Database) -> None:
    fill(db, "a", "b", "c")
    tenant: ContextVar[str] = ContextVar("tenant", default="")
    seen: list[str] = []

    def publish(messages: Sequence[Any]) -> None:
        seen.append(tenant.get())
        tenant.set(messages[0].message_key)
        if len(messages) > 1:
            raise ValueError("one by one")

    relay_once(db, publish)
    assert seen == [""] * 4


def test_a_failing_message_holds_back_only_its_key(db: Database) -> None:
    a1, a2, b1, _, none, b3 = fill(db, "a", "a", "b", "b", None, "b")
    notes = Notes(lambda message: message.id == a2 or message.message_key == "b")
    relay = relay_of(db, notes)
    assert once(db, relay) == 2
    assert sorted(notes.calls[1:]) == sorted([[a1], [a2], [b1], [none]])
    assert notes.calls.index([a1]) < notes.calls.index([a2])
    assert states(db) == {a2: "retryable", b1: "retryable", b1 + 1: "available", b3: "available"}
    failed = "ConnectionError: the broker does not answer"
    assert by_id(db, Outgoing.error) == {a2: failed, b1: failed, b1 + 1: None, b3: None}
    assert once(db, relay) == 0


def test_keys_are_compared_exactly_when_one_fails(sync_db: Database) -> None:
    upper, _, _ = fill(sync_db, "KEY", "key", "KEY")
    notes = Notes(lambda message: message.id == upper)
    relay_once(sync_db, notes)
    assert upper + 2 not in [each for call in notes.calls[1:] for each in call]


def test_after_the_backoff_publishing_resumes_in_order(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(sync_db, "a", "a", "a")
    notes = Notes(lambda message: message.id == ids[1], Snooze(timedelta(0)))
    relay = relay_of(sync_db, notes)
    once(sync_db, relay)
    assert states(sync_db) == {ids[1]: "scheduled", ids[2]: "available"}
    notes.fails = lambda _: False
    assert once(sync_db, relay) == 2
    assert notes.calls[-1] == ids[1:]


def test_a_discarded_message_holds_back_nothing(db: Database) -> None:
    a1, a2 = fill(db, "a", "a")
    (b1,) = fill(db, "b")
    notes = Notes(lambda message: message.id == a1, Discard("too large"))
    relay = relay_of(db, notes)
    assert once(db, relay) == 1
    assert states(db) == {a1: "discarded", a2: "available"}
    notes.fails, notes.error = (lambda message: message.id == a2), Cancel()
    once(db, relay)
    assert states(db) == {a1: "discarded", a2: "cancelled"}
    assert b1 in notes.published


def test_a_crash_after_publishing_publishes_again_with_the_same_ids(db: Database) -> None:
    ids = fill(db, "a", "a", "b")
    with db.begin() as crashed:
        assert claim(crashed) == ids  # and publishes them, and is no more
    notes = Notes()
    relay = relay_of(db, notes)
    assert once(db, relay) == 0
    end_leases(db, Outgoing)
    assert once(db, relay) == 3
    assert notes.calls in ([ids], [[ids[2], *ids[:2]]])


def test_a_lost_claim_completes_none_of_the_batch(sync_db: Database) -> None:
    ids = fill(sync_db, "a", "a")
    others = Notes()

    def stall(messages: Sequence[Any]) -> None:
        end_leases(sync_db, Outgoing)
        others([*sync_db.committed.run(claim_messages, Outgoing, limit=1)])

    relay = relay_of(sync_db, stall)
    once(sync_db, relay)
    assert others.calls == [ids[:1]]
    assert states(sync_db) == {ids[0]: "running"}
    assert relay._reports.counts["lost"] == 1


@pytest.mark.one_engine
def test_an_awaitable_that_is_not_awaited_is_not_counted_as_published(sync_db: Database) -> None:
    (only,) = fill(sync_db, "a")

    async def coroutine(messages: Sequence[Any]) -> None: ...

    assert relay_once(sync_db, lambda messages: coroutine(messages) or None) == 0
    assert states(sync_db) == {only: "retryable"}


@pytest.mark.one_engine
@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt()])
def test_no_exception_of_a_publisher_ends_a_relay(sync_db: Database, error: BaseException) -> None:
    (only,) = fill(sync_db, "a")
    relay_once(sync_db, Notes(lambda _: True, error))
    assert states(sync_db) == {only: "retryable"}


@pytest.mark.one_engine
def test_the_tools_for_tests_publish_in_order_too(sync_db: Database) -> None:
    ids = fill(sync_db, "a", "a", "a")
    notes = Notes()
    assert drain(relay_of(sync_db, notes)) == {"completed": 3}
    assert notes.calls == [[each] for each in ids]


def produce(db: Database, keys: Sequence[str], each: int) -> None:
    for _ in range(each):
        for key in keys:
            fill(db, key)


@pytest.mark.requires("obeys_hints")
def test_several_relays_keep_the_order_of_each_key(db: Database, workers: Workers) -> None:
    """Each producer has its own keys, so none waits for the row that the messages are about."""
    notes: list[tuple[str, int]] = []
    dice = random.Random(7)

    def publish(messages: Sequence[Any]) -> None:
        for message in messages:
            if dice.random() < 0.02:
                raise ConnectionError("bad luck")
            notes.append((message.message_key, message.id))

    for number in range(3):
        start_relay(db, workers, publish, batch=7, name=f"relay {number}", poll=timedelta(milliseconds=50))
    producers = [Thread(target=produce, args=(db, keys, 12)) for keys in ("abc", "def")]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    eventually(lambda: drained(db))
    seen = first_occurrences(notes)
    assert {key: len(ids) for key, ids in seen.items()} == dict.fromkeys("abcdef", 12)
    assert {key: sorted(ids) for key, ids in seen.items()} == seen
