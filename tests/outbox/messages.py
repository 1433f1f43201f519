"""Messages in the outbox, publishers that record their messages, and assertions about these records."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

from sqlqueue.outbox import Relay, claim_messages
from tests.support.harness import Actor, Database
from tests.support.models import Outgoing
from tests.support.rows import count
from tests.support.workers import Running, Workers, by_id


def fill(db: Database, *keys: str | None, **columns: Any) -> list[int]:
    """Insert a message for each of these keys; return their ids, in that order."""
    with db.begin() as actor:
        messages = [Outgoing(message_key=key, payload={"number": n}, **columns) for n, key in enumerate(keys)]
        for message in messages:
            actor.add(message)
            actor.flush()
        return [message.id for message in messages]


def claim(actor: Actor, *where: Any, limit: int = 100) -> list[int]:
    return in_order(actor.run(claim_messages, Outgoing, *where, limit=limit))


def in_order(messages: Iterable[Any]) -> list[int]:
    """Return the ids of claimed messages, those of each key as they were claimed; the keys in order, none last."""
    by_key = sorted(messages, key=lambda message: (message.message_key is None, message.message_key or ""))
    return [message.id for message in by_key]


class Notes:
    """A publisher that fails for the given messages."""

    def __init__(self, fails: Callable[[Any], bool] = lambda _: False, error: BaseException | None = None) -> None:
        self.calls: list[list[int]] = []
        self.fails = fails
        self.error = error or ConnectionError("the broker does not answer")
        self._lock = Lock()

    def __call__(self, messages: Sequence[Any]) -> None:
        with self._lock:
            self.calls.append([message.id for message in messages])
        for message in messages:
            if self.fails(message):
                raise self.error

    @property
    def published(self) -> list[int]:
        return [each for call in self.calls for each in call]


def relay_of(db: Database, publish: Callable[..., Any], model: Any = Outgoing, **options: Any) -> Relay:
    """Return a relay whose publisher matches the kind of sessions."""

    async def coroutine(messages: Sequence[Any]) -> None:
        publish(messages)

    return Relay(db.sessions(), model, coroutine if db.is_async else publish, notify=False, **options)


def start_relay(db: Database, workers: Workers, publish: Callable[..., Any], **options: Any) -> Running:
    """Start a relay, whose publisher may block."""

    async def coroutine(messages: Sequence[Any]) -> None:
        await asyncio.to_thread(publish, messages)

    engine = db.variant(pool_size=20)
    relay = Relay(engine.sessions(), Outgoing, coroutine if db.is_async else publish, notify=False, **options)
    return workers.start(relay, engine=engine)


def first_occurrences(deliveries: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Return the message ids by key, as seen by a consumer that drops repeated messages."""
    seen: defaultdict[Any, dict[Any, None]] = defaultdict(dict)
    for key, identity in deliveries:
        seen[key].setdefault(identity)
    return {key: list(ids) for key, ids in seen.items()}


def states(db: Database) -> dict[int, str]:
    """Return the states of the messages that remain in the outbox."""
    return by_id(db, Outgoing.status)


def drained(db: Database) -> bool:
    return not count(db, Outgoing)
