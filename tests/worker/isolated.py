"""Workers that child processes can import, whose handlers behave according to the task's name."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import AsyncQueueSession, Cancel, Discard, QueueSession, Retry, Snooze, Worker, current_job
from tests.support.models import Document, Film, Ledger, Render, Task
from tests.worker.children import end_a_fork

BRIEF = timedelta(seconds=3)
HOUR = timedelta(hours=1)


class Context(NamedTuple):
    """The values that a test passes to its child processes."""

    url: str
    is_async: bool
    directory: str

    @staticmethod
    def _file(pid: int) -> Path:
        return Path(tempfile.gettempdir()) / f"sqlqueue-test-{pid}.json"

    def write(self) -> Path:
        file = self._file(os.getpid())
        file.write_text(json.dumps(self))
        return file

    @classmethod
    def read(cls) -> Context:
        """Return the context of the test that started this process."""
        parent = parent_process()
        assert parent is not None
        return cls(*json.loads(cls._file(parent.pid or 0).read_text()))

    def waiting(self) -> list[int]:
        """Return the ids of the processes that wait."""
        return [int(each.name) for each in Path(self.directory).iterdir() if each.name.isdigit()]

    def release(self) -> None:
        (Path(self.directory) / "go").touch()

    def wait(self) -> None:
        directory = Path(self.directory)
        (directory / str(os.getpid())).touch()
        while not (directory / "go").exists():
            time.sleep(0.02)


class Odd(Exception):
    """An object that cannot be pickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Even(Exception):
    """An object that can be pickled."""


def hang(task: Any) -> None:
    """Block all threads of the process."""
    Context.read().wait() if task.number else None
    ctypes.PyDLL(None).sleep(600)


def fail(error: BaseException) -> None:
    raise error


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def set_tenant(task: Any) -> None:
    before = tenant.get()
    tenant.set("a tenant")
    fail(Even(f"the tenant was {before}"))


def grow(_: Any) -> None:
    kept.append(bytearray(os.urandom(1024)) * 1024 * 200)


kept: list[bytearray] = []
ACTS: Mapping[str, Callable[[Any], Any]] = {
    "write": lambda _: None,
    "wait": lambda _: Context.read().wait(),
    "hang": hang,
    "exit": lambda _: os._exit(7),
    "fork": lambda _: fail(Even(f"the forked process ended with {end_a_fork()}")),
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "grow": grow,
    "log": lambda task: logging.getLogger("tests.handler").warning("hears of %s", current_job()),
    "odd": lambda _: fail(Odd(1, 2)),
    "tenant": set_tenant,
    "cancelled": lambda _: fail(CancelledError()),
    "even": lambda _: fail(Even("and good")),
    "sys.exit": lambda _: sys.exit(3),
    "retry": lambda _: fail(Retry(HOUR, "not yet")),
    "snooze": lambda _: fail(Snooze(HOUR)),
    "discard": lambda _: fail(Discard("never")),
    "cancel": lambda _: fail(Cancel()),
}


def handle(session: Any, task: Task) -> None:
    session.add(Ledger(task_id=task.id, worker=str(os.getpid())))
    if task.name not in ("wait", "write"):
        session.flush()
    ACTS[task.name](task)


async def handle_async(session: Any, task: Task) -> None:
    await session.run_sync(handle, task)


def settle(film: Film) -> dict[str, Any]:
    return {"stage": film.stage, "pid": os.getpid()}


async def settle_async(film: Film) -> dict[str, Any]:
    return settle(film)


def fail_plainly(document: Document) -> None:
    raise ValueError(document.id)


async def fail_plainly_async(document: Document) -> None:
    fail_plainly(document)


def render(session: Any, task: Render) -> None:
    current_job().note("began")
    current_job().report(0.5, "half of it")
    Context.read().wait()
    if task.arguments is not None:
        session.add(Ledger(task_id=task.id, worker=str(os.getpid())))
    current_job().report(1)


sessions = sessionmaker(class_=QueueSession, expire_on_commit=False)
async_sessions = async_sessionmaker(class_=AsyncQueueSession, expire_on_commit=False)
OPTIONS: dict[str, Any] = {"poll": timedelta(seconds=0.3), "notify": False}


def _worker(*, is_async: bool, **options: Any) -> Worker:
    worker = Worker(async_sessions if is_async else sessions, **OPTIONS)
    worker.handler(Task, isolation="process", **{"concurrency": 2, **options})(handle_async if is_async else handle)
    return worker


calm, calm_async = (_worker(is_async=each) for each in (False, True))
leasing, leasing_async = (_worker(is_async=each, lease=BRIEF) for each in (False, True))
hasty, hasty_async = (_worker(is_async=each, timeout=BRIEF) for each in (False, True))
frugal = _worker(is_async=False, concurrency=1, max_tasks=2)
lean = _worker(is_async=False, concurrency=1, max_memory=150)
rendering = Worker(sessions, **OPTIONS)
rendering.handler(Render, isolation="process")(render)
plain, plain_async = Worker(sessions, **OPTIONS), Worker(async_sessions, **OPTIONS)
plain.handler(Film, isolation="process", concurrency=1)(settle)
plain.handler(Document, isolation="process", concurrency=1)(fail_plainly)
plain_async.handler(Film, isolation="process", concurrency=1)(settle_async)
plain_async.handler(Document, isolation="process", concurrency=1)(fail_plainly_async)

if parent_process() is not None:
    context = Context.read()
    if context.is_async:
        async_sessions.configure(bind=create_async_engine(context.url))
    else:
        sessions.configure(bind=create_engine(context.url))
