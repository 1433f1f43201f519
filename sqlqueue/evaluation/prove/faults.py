"""Injects faults into worker processes while there is work."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Status

from .models import LEASE, Task
from .processes import WorkerProcess, WorkerProcesses
from .scenarios import hold_locks
from .worker import WORK

_EVERY = 0.7
"""Seconds between two faults."""
_FROZEN = 1.5 * LEASE.total_seconds()
_BACKLOG = 60
_TICK = 0.05
Claims = set[tuple[int, int | None]]
"""The keys and tokens of running tasks."""


class Faults:
    """Injects faults into worker processes, and records how long it takes until their tasks are recovered."""

    def __init__(self, workers: WorkerProcesses, sessions: sessionmaker[QueueSession]) -> None:
        self.counts: Counter[str] = Counter()
        self.enqueued = 0
        self.recovery: dict[str, float] = {}
        """The longest time in seconds, by kind of fault, until the affected worker's tasks were held by others or
        done."""
        self._workers = workers
        self._sessions = sessions
        self._held: list[tuple[str, float, Claims]] = []
        """The kind and time of each fault, and the affected worker's claims that still hold tasks."""

    def inflict(self, until: Callable[[], bool]) -> Iterator[None]:
        """Enqueue tasks and inject faults until ``until`` holds and each kind has occurred; yield between them."""
        kinds: dict[str, Callable[[WorkerProcess], None]] = {
            "frozen": self._freeze,
            "killed": self._kill,
            "cut off": self._cut,
        }
        # in a separate thread: waiting for the locks of a frozen worker must not delay the next fault
        with ThreadPoolExecutor(1, "locks") as pool:
            holding: Future[None] | None = None
            while not until() or len(self.counts) < len(kinds):
                if holding is None or holding.done():
                    holding = pool.submit(self._hold_locks)
                for kind, fault in kinds.items():
                    with suppress(DBAPIError):
                        self._enqueue()
                    self._look_for(_EVERY)
                    victim = random.choice([each for each in self._workers.running if not each.is_frozen])
                    fault(victim)
                    self._held.append((kind, time.monotonic(), self._claims(Task.claimed_by == victim.name)))
                    self.counts[kind] += 1
                    yield
            while any(each.is_frozen for each in self._workers.running):
                self._look_for(_TICK)

    def look(self) -> None:
        """Replace processes that died, and record which claims have recovered."""
        self._workers.replace_dead()
        if not self._held:
            return
        running, now = self._claims(), time.monotonic()
        for kind, begun, held in self._held:
            if not held & running:
                self.recovery[kind] = max(self.recovery.get(kind, 0.0), now - begun)
        self._held = [(kind, begun, held) for kind, begun, held in self._held if held & running]

    def _claims(self, *where: ColumnElement[bool]) -> Claims:
        running = select(Task.id, Task.claim_token).where(Task.topic == WORK, Task.status == Status.RUNNING, *where)
        with self._sessions() as session:
            return {(identity, token) for identity, token in session.execute(running)}

    def unfinished(self) -> int:
        """Return the number of tasks that are not done."""
        undone = select(func.count()).select_from(Task).where(Task.topic == WORK, Task.status != Status.COMPLETED)
        with self._sessions() as session:
            return session.scalar(undone) or 0

    def _look_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(_TICK)

    def _enqueue(self) -> None:
        number = _BACKLOG - self.unfinished()
        if number > 0:
            with self._sessions.begin() as session:
                session.enqueue(Task, [{"topic": WORK}] * number)
            self.enqueued += number

    def _kill(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._workers.replace(worker)

    def _freeze(self, worker: WorkerProcess) -> None:
        worker.freeze(_FROZEN)

    def _cut(self, worker: WorkerProcess) -> None:
        worker.cut()

    def _hold_locks(self) -> None:
        with suppress(DBAPIError):  # this session itself lost a conflict
            hold_locks(self._sessions)
