"""The code that the relay processes of the tests run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from select import select
from threading import Thread
from typing import Any

from sqlalchemy import URL, create_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession
from sqlqueue.outbox import Relay
from tests.support.models import Outgoing
from tests.support.processes import Gate

QUEUE = "relayed"
LEASE = timedelta(seconds=1)


class RabbitPublisher:
    """Publishes messages one by one, each with a confirmation; a failed connection is not used again."""

    def __init__(self, port: int, begun: Callable[[], object]) -> None:
        self._port = port
        self._begun = begun
        self._channel: Any = None

    def __call__(self, messages: Sequence[Outgoing]) -> None:
        if self._channel is None:
            self._channel = self._connect()
        try:
            for message in messages:
                self._publish(message)
        except BaseException:
            self._channel = None
            raise

    def _publish(self, message: Outgoing) -> None:
        import pika

        time.sleep(0.005)  # like a broker on another host
        body = json.dumps({"id": message.id, "key": message.message_key, **message.payload}).encode()
        self._channel.basic_publish("", QUEUE, body, pika.BasicProperties(message_id=str(message.id)), mandatory=True)

    def _connect(self) -> Any:
        import pika

        channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port)).channel()
        channel.confirm_delivery()
        self._begun()
        return channel


def killed_at_random(gate: Gate, url: URL, port: int, count: int, kills: int) -> list[int]:
    """Run several relays; now and then, kill one soon after it has begun to publish, and replace it. Returns the exit
    statuses of the others."""
    dice = random.Random(7)
    at_work, tell = os.pipe()
    relays = {_fork(url, port, tell) for _ in range(count)}
    for _ in range(kills):
        victim = _read_pid(at_work)
        time.sleep(dice.uniform(0, 0.4))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        relays.remove(victim)
        relays.add(_fork(url, port, tell))
    gate.wait()
    for pid in relays:
        os.kill(pid, signal.SIGTERM)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in relays]


def _read_pid(at_work: int) -> int:
    ready, _, _ = select([at_work], [], [], 30)
    assert ready, "no relay publishes anything"
    return int(os.read(at_work, 8))


def _fork(url: URL, port: int, tell: int) -> int:
    """Fork this process, which has no threads and no connections: a new interpreter would take seconds to start."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    Thread(target=_follow, args=(parent,), daemon=True).start()
    status = 1
    try:
        _relay(url, RabbitPublisher(port, lambda: os.write(tell, b"%8d" % os.getpid())))
        status = 0
    finally:
        os._exit(status)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def _relay(url: URL, publisher: RabbitPublisher) -> None:
    sessions = sessionmaker(create_engine(url), class_=QueueSession)
    Relay(sessions, Outgoing, publisher, batch=10, lease=LEASE, poll=timedelta(seconds=0.2)).run()
