"""Processes that wait for tasks, as workers do, and report when they started each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from sqlalchemy import URL

from sqlqueue import Worker

from ..._support.processes import CONTEXT, start
from ...dialects.postgresql.notifications import CHANNEL
from ...queue.spec import spec_of
from ..database import connect, sessions
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
def worker_process(url: URL, *, notify: bool, counter: Counter = None) -> Iterator[Connection]:
    """Yield the pipe of a worker, which sends a :class:`TaskStart` for each task, and its statement count on request.

    ``counter``: of the proxy in ``url``, if there is one.
    """
    with _process(_work, url, counter, notify) as (process, channel):
        yield channel
        channel.send("stop")
        process.join(30)


@contextmanager
def listener_process(url: URL, *, counter: Counter = None) -> Iterator[Connection]:
    """Yield the pipe of a process that does the same by hand, using only the driver; it accepts no requests."""
    with _process(_listen, url, counter) as (_, channel):
        yield channel


@contextmanager
def _process(main: Callable[..., None], *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    """Start a process, and yield it and its pipe when it is ready; kill it afterwards."""
    here, there = CONTEXT.Pipe()
    process = start(main, there, *arguments, daemon=True)
    there.close()
    try:
        here.recv()
        yield process, here
    finally:
        process.kill()
        process.join()


def _begun(task: int, counter: Counter) -> TaskStart:
    return TaskStart(task, time.monotonic(), time.time(), 0 if counter is None else counter.value)


def _work(channel: Connection, url: URL, counter: Counter, notify: bool) -> None:
    statements = StatementCounter()
    worker = Worker(sessions(statements.watch(connect(url))), notify=notify)

    @worker.handler(Probe)
    def begin(probe: Probe) -> None:
        channel.send(_begun(probe.id, counter))

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
