"""Messages from the database to a real broker, through relays that are killed repeatedly."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import select

from tests.outbox.broker import rabbitmq
from tests.outbox.children import QUEUE, killed_at_random
from tests.outbox.messages import first_occurrences
from tests.support.harness import Database
from tests.support.models import Account, Outgoing
from tests.support.processes import Processes
from tests.support.rows import count
from tests.support.workers import eventually

# one engine is enough here; relays in other processes are notified of new messages
pytestmark = [pytest.mark.requires("notifies"), pytest.mark.timeout(300)]
ACCOUNTS = 24
RELAYS = 3
KILLS = 10


class Producer(Thread):
    """Writes messages about accounts, several concurrently about the same; each message has the number of the
    change."""

    def __init__(self, db: Database, accounts: Sequence[int], seed: int) -> None:
        super().__init__(daemon=True)
        self._db = db
        self._accounts = accounts
        self._dice = random.Random(seed)
        self._stopped = Event()
        self.committed: list[int] = []

    def run(self) -> None:
        with self._db.session() as actor:
            while not self._stopped.wait(0.02):
                keys = sorted(self._dice.sample(self._accounts, self._dice.randint(1, 2)))
                ids = [self._change(actor, key) for key in keys]
                if self._dice.random() < 0.1:
                    actor.rollback()
                else:
                    actor.commit()
                    self.committed += ids

    def _change(self, actor: Any, key: int) -> int:
        account = actor.get(Account, key, with_for_update={"of": Account}, populate_existing=True)
        account.name = str(int(account.name) + 1)
        message = Outgoing(message_key=str(key), payload={"number": int(account.name)})
        actor.add(message)
        actor.flush()
        return message.id

    def stop(self) -> list[int]:
        """Stop, and return the committed messages."""
        self._stopped.set()
        self.join()
        return self.committed


@pytest.fixture
def broker() -> Iterator[int]:
    pytest.importorskip("pika")
    with rabbitmq() as port:
        yield port


@pytest.fixture
def channel(broker: int) -> Iterator[Any]:
    import pika

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker, heartbeat=0)) as connection:
        opened = connection.channel()
        opened.queue_declare(QUEUE)
        yield opened


def delivered(channel: Any) -> list[dict[str, Any]]:
    """Return all messages in the broker's queue, in order of arrival."""
    found = []
    while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
        found.append(json.loads(got[2]))
    return found


@pytest.fixture
def producers(sync_db: Database) -> Iterator[list[Producer]]:
    accounts = range(1, ACCOUNTS + 1)
    sync_db.insert(Account, [{"id": account, "name": "0"} for account in accounts])
    started = [Producer(sync_db, accounts, seed) for seed in range(3)]
    for producer in started:
        producer.start()
    yield started
    for producer in started:
        producer.stop()


def test_nothing_is_lost_and_each_key_keeps_its_order(
    sync_db: Database, processes: Processes, broker: int, channel: Any, producers: list[Producer]
) -> None:
    relays = processes.spawn(killed_at_random, sync_db.url, broker, RELAYS, KILLS)
    relays.wait_until_arrived(120)
    committed = sorted(each for producer in producers for each in producer.stop())
    eventually(lambda: not count(sync_db, Outgoing), 60)
    relays.let_pass()
    assert relays.result() == [0] * RELAYS
    messages = delivered(channel)
    assert sorted({message["id"] for message in messages}) == committed
    numbers = first_occurrences((message["key"], message["number"]) for message in messages)
    with sync_db.engine.connect() as connection:
        changes = {str(key): int(name) for key, name in connection.execute(select(Account.id, Account.name))}
    assert numbers == {key: list(range(1, last + 1)) for key, last in changes.items() if last}
    assert len(messages) > len(committed), "no relay was killed between publishing and completing"
