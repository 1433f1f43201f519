"""A worker in a process of its own, as workers are, which tells when it began each task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from sqlalchemy import URL, event

from sqlqueue import Worker

from ..demo.database import connect, sessions
from ..processes import CONTEXT
from .models import Probe


class Begun(NamedTuple):
    """A task, and when its handler was called."""

    task: int
    monotonic: float
    """``time.monotonic``, which all processes of a machine share."""
    wall: float


@contextmanager
def worker_process(url: URL, *, notify: bool) -> Iterator[Connection]:
    """The pipe of a worker: it sends a :class:`Begun` for each task, and its count of statements when it is asked."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_main, args=(there, url, notify), daemon=True)
    process.start()
    there.close()
    try:
        here.recv()
        yield here
        here.send("stop")
        process.join(30)
    finally:
        process.kill()
        process.join()


def _main(channel: Connection, url: URL, notify: bool) -> None:
    engine = connect(url)
    statements = 0

    def count(*_: Any) -> None:
        nonlocal statements
        statements += 1

    event.listen(engine, "before_cursor_execute", count)
    worker = Worker(sessions(engine), notify=notify)

    @worker.handler(Probe)
    def begin(probe: Probe) -> None:
        channel.send(Begun(probe.id, time.monotonic(), time.time()))

    def obey() -> None:
        channel.send("ready")
        while channel.recv() == "statements":
            channel.send(statements)
        worker.stop()

    threading.Thread(target=obey, daemon=True).start()
    worker.run()
