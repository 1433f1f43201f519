"""Targets of the tests' worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, event
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Steps, Worker
from sqlqueue._support import processes
from sqlqueue.worker.supervisor import run_to_end
from tests.suite.children import set_clock
from tests.support.fleet import Errand
from tests.support.models import Ledger, Task, Visit, Voyage
from tests.support.processes import Gate
from tests.support.workers import LEASE, LONG


def work(gate: Gate, url: URL) -> str:
    """Run one task at a time, each for as long as the test wants; the grace period is longer than any test."""
    engine = create_engine(url)
    worker = Worker(sessionmaker(engine, class_=QueueSession), name="child", grace=LONG)

    @worker.handler(Task, concurrency=1, lease=LEASE)
    def handle(session: QueueSession, task: Task) -> None:
        gate.wait()
        session.add(Ledger(task_id=task.id, worker="child"))

    worker.run()
    engine.dispose()
    return "ended"


def work_at_another_time(gate: Gate, url: URL, hours: int) -> None:
    """Run tasks until killed, on a host whose clock is off."""
    set_clock(hours)
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), poll=LONG)
    worker.handler(Visit)(lambda task: None)
    gate.wait()
    worker.run()


def never_return(gate: Gate, url: URL, own_pool: bool) -> str:
    """Start a thread that never ends: one of the event loop's, or one that is joined at exit."""
    processes.CLEANUP_LIMIT = 0.3
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), name="child")

    @worker.handler(Task, concurrency=1)
    async def handle(task: Task) -> None:
        await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor() if own_pool else None, gate.wait)

    run_to_end(worker) if own_pool else worker.run()
    return "ended"


def write_and_stay(gate: Gate, url: URL) -> None:
    """Wait at the gate, with the effects written but not committed, to be killed."""
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), name="child")

    @worker.handler(Task, concurrency=1, lease=LEASE)
    def handle(session: QueueSession, task: Task) -> None:
        session.add(Ledger(task_id=task.id, worker="child"))
        session.flush()
        gate.wait()

    worker.run()


def run_an_errand(gate: Gate, url: URL) -> None:
    """Run a task of the fleet, for the test to kill this process."""
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), name="child")

    @worker.handler(Errand, lease=timedelta(hours=1))
    def handle(errand: Errand) -> None:
        gate.wait()

    worker.run()


def end_a_fork() -> int:
    """Fork a process, end it with SIGTERM as `multiprocessing.Pool` does, and return how it ended."""
    is_ready, ready = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(ready, b"!")
        time.sleep(LONG.total_seconds())
        os._exit(0)
    os.read(is_ready, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork(gate: Gate, url: URL, is_coroutine: bool) -> tuple[int, bool]:
    """Run a handler that forks a process and ends it; return how that ended, and whether SIGTERM still stops the
    worker."""
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), name="child")
    ended: list[int] = []

    def call(task: Task) -> None:
        ended.append(end_a_fork())
        os.kill(os.getpid(), signal.SIGTERM)

    async def await_call(task: Task) -> None:
        call(task)

    worker.handler(Task)(await_call if is_coroutine else call)
    before = signal.getsignal(signal.SIGTERM)
    worker.run()
    return ended[0], signal.getsignal(signal.SIGTERM) is before


def lives(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sail(gate: Gate, url: URL, moment: str) -> None:
    """Run a voyage until its end; or until the commit of the next step, and die just before or after it."""
    engine = create_engine(url)
    recording = set[int]()  # the threads whose transactions have recorded a step
    commit = engine.dialect.do_commit

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "SET steps=" in statement:
            recording.add(threading.get_ident())

    def do_commit(connection: Any) -> None:
        if threading.get_ident() in recording and moment == "before":
            os._exit(9)
        commit(connection)
        if threading.get_ident() in recording and moment == "after":
            os._exit(9)

    event.listen(engine, "before_cursor_execute", note)
    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]
    worker = Worker(sessionmaker(engine, class_=QueueSession), poll=timedelta(seconds=0.1))

    @worker.handler(Voyage)
    def fly(steps: Steps, task: Voyage) -> None:
        steps.key("pay")
        steps.run("pay", lambda: "paid")
        for number in range(2):
            steps.run(f"book {number}", lambda session, number=number: session.add(Ledger(task_id=number)))
        worker.stop()

    worker.run()
