"""Worker processes that a task kills, for tests and measurements."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from tests.support.task import Ledger, Task

URL_VARIABLE = "SQLQUEUE_TEST_CRASHING_URL"
MODE_VARIABLE = "SQLQUEUE_TEST_CRASHING_MODE"
CONCURRENCY_VARIABLE = "SQLQUEUE_TEST_CRASHING_CONCURRENCY"
PLACE_VARIABLE = "SQLQUEUE_TEST_CRASHING_PLACE"
"""A file into which a hanging task writes its process id, or a control group with little memory for one that
allocates."""
LEASE = timedelta(seconds=30)
POLL = timedelta(seconds=0.2)
POISON = "poison"
GROWING = "growing"
"""The name of a task that leaks the given number of bytes."""
_KEPT: list[bytes] = []
ALONE = """
import logging, sys
from sqlqueue.worker.supervisor import supervise
from tests.worker.crashing import load
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    sys.exit(supervise(load, int(sys.argv[2])))
"""
"""A program whose worker cannot be imported by child processes, so that suspects run in its own process."""
APART = """
import sys
from sqlqueue.cli import main
if __name__ == "__main__":
    sys.argv[1:] = ["work", "tests.worker.crashing:worker", *sys.argv[1:]]
    main()
"""
DELIVERIES = APART.replace("crashing:worker", "delivering:worker")
"""A program whose worker crashes when it first handles a parcel."""
STALLING = """
import sys
from sqlqueue.cli import main
from sqlqueue.worker import supervisor
if __name__ == "__main__":
    supervisor.STALLED = 2
    sys.argv[1:] = ["work", "tests.worker.crashing:stalling", *sys.argv[1:]]
    main()
"""
"""A program whose worker has a coroutine that blocks the event loop when it first handles a poison task."""


def die(how: str) -> None:
    """End this process in the way ``how``."""
    if how == "exit":
        os._exit(7)
    if how == "leave":
        os._exit(0)
    if how == "segv":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    place = Path(os.environ[PLACE_VARIABLE])
    place.write_text(str(os.getpid()))
    if how == "hang":
        time.sleep(3600)
    if how == "memory":
        _KEPT.append(b"x" * 300_000_000)
    raise ValueError(how)


def _handle(session: Any, task: Task) -> None:
    """Sleep for ``number`` milliseconds, and grow or die according to the name, some time after the others have
    begun."""
    kind, _, how = task.name.partition(":")
    if kind == GROWING:
        _KEPT.append(b"x" * int(how))
    if kind == POISON:
        time.sleep(task.number / 1000)
        die(how)
    time.sleep(task.number / 1000)
    session.add(Ledger(task_id=task.id, worker=str(os.getpid())))


def _handle_all(session: Any, tasks: list[Task]) -> None:
    for task in tasks:
        _handle(session, task)


def load(number: int = 0) -> Worker:
    """Return the worker of one process: with a lease and a session, or as configured by the environment."""
    mode: Any = os.environ.get(MODE_VARIABLE, "lease")
    engine = create_engine(os.environ[URL_VARIABLE])
    worker = Worker(sessionmaker(engine, class_=QueueSession), poll=POLL)
    concurrency = int(os.environ.get(CONCURRENCY_VARIABLE, "4"))
    if mode == "chunk":
        worker.handler(Task, concurrency=concurrency, lease=LEASE, chunk=20)(_handle_all)
    else:
        worker.handler(Task, concurrency=concurrency, lease=LEASE, mode=mode)(_handle)
    return worker


@contextmanager
def supervised(
    url: URL, processes: int = 1, *arguments: str, mode: str = "lease", program: str = APART
) -> Iterator[subprocess.Popen[str]]:
    """Run a supervisor with the given number of processes on the database at ``url``."""
    environment = {
        **os.environ,
        URL_VARIABLE: url.render_as_string(hide_password=False),
        MODE_VARIABLE: mode,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", program, "--processes", str(processes), *arguments]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        assert started.stderr is not None
        started.stderr.close()
        started.wait()


def stopped(supervisor: subprocess.Popen[str]) -> str:
    """Stop the supervisor, and return its log."""
    supervisor.send_signal(signal.SIGTERM)
    _, errors = supervisor.communicate(timeout=60)
    return errors


if URL_VARIABLE in os.environ:
    worker = load()
    stalling = Worker(sessionmaker(create_engine(os.environ[URL_VARIABLE]), class_=QueueSession), poll=POLL)

    @stalling.handler(Task, concurrency=4, lease=LEASE)
    async def stall(task: Task) -> None:
        """Block the event loop when a poison task is first handled."""
        if task.name == POISON and not task.crashes:
            time.sleep(3600)
