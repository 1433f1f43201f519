"""Processes that wait for tasks, as workers do, and report when they started each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from sqlalchemy import URL

from sqlqueue import Worker
from sqlqueue.dialects.postgresql import CHANNEL
from sqlqueue.evaluation.support import ChildProcess, connect, sessions
from sqlqueue.queue.spec import spec_of

from .baselines import BASELINES, raw_connection
from .counter import StatementCounter
from .models import Probe
from .plan import Shape
from .proxy import Counter


class TaskStart(NamedTuple):
    """A task's key, and the time when its handler was called."""

    task: int
    monotonic: float
    """``time.monotonic``, which all processes of a machine share."""
    wall: float
    round_trips: int
    """The count of the proxy at that time; 0 without one."""


@contextmanager
def worker_process(url: URL, *, notify: bool, counter: Counter = None) -> Iterator[ChildProcess]:
    """Yield a worker, which sends a :class:`TaskStart` for each task, and its statement count on request.

    ``counter``: the counter of the proxy in ``url``, if there is one.
    """
    with ChildProcess("the worker", _work, url, counter, notify) as process:
        process.receive()
        yield process
        process.send("stop")
        process.join()


@contextmanager
def listener_process(url: URL, *, counter: Counter = None) -> Iterator[ChildProcess]:
    """Yield a process that does the same by hand, using only the driver; it accepts no requests."""
    with ChildProcess("the listener", _listen, url, counter) as process:
        process.receive()
        yield process


def _begun(task: int, counter: Counter) -> TaskStart:
    return TaskStart(task, time.monotonic(), time.time(), 0 if counter is None else counter.value)


def _work(channel: Connection, url: URL, counter: Counter, notify: bool) -> None:
    statements = StatementCounter()
    worker = Worker(sessions(statements.watch(connect(url))), notify=notify)

    @worker.handler(Probe)
    def begin(probe: Probe) -> None:
        channel.send(_begun(probe.id, counter))

    serve(channel, worker, statements)


def serve(channel: Connection, worker: Worker, statements: StatementCounter) -> None:
    """Run a worker until the other end says `"stop"`; whenever it says `"statements"`, tell how many were sent."""

    def obey() -> None:
        channel.send("ready")
        while channel.recv() == "statements":
            channel.send(statements.statements)
        worker.stop()

    threading.Thread(target=obey, daemon=True).start()
    worker.run()


def _listen(channel: Connection, url: URL, counter: Counter) -> None:
    engine = connect(url)
    spec = spec_of(Probe)
    shape = Shape(table=spec.table.name, index=spec.index_name("claim"), makes_keys=True, columns=("id", "attempt"))
    client = BASELINES[engine.driver](raw_connection(engine), shape, StatementCounter())
    for number, _ in enumerate(client.news(CHANNEL)):
        if number == 0:
            channel.send("ready")
        while rows := client.claim(1):
            client.commit()
            channel.send(_begun(rows[0][0], counter))
            client.complete(rows)
            client.commit()
        client.commit()
