"""What the parts of a running worker share, and the suspects that run apart."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from threading import Event

from sqlalchemy.orm import Session

from .._support.errors import ArgumentError, WorkerTokens
from .._support.texts import ascii_text
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..model.declaration import LONGEST_NAME
from ..operations.claiming import ClaimQuery
from ..operations.unreadable import unreadable_rows
from ..queue.spec import QueueSpec, Where
from .children import Children, IsolatedExecutor
from .completer import Completer
from .database import Backoff, Database, keep_running
from .executor import Done, StartedTasks, ThreadPool
from .handlers import Handler
from .jobs import InFlight
from .news import PausedQueues
from .reports import Reports, logger

# -- the interface between fetchers and the other parts of a run ------------------------------------------------------


class BaseFetcher(ABC):
    """Claims the tasks of one handler, and has the handler called.  All methods must be called on the event loop of the
    run."""

    slots: int
    """How many calls run at a time."""

    @abstractmethod
    async def run(self) -> None:
        """Claim until :meth:`drain`, through outages of the database."""

    @abstractmethod
    def drain(self) -> None:
        """Claim nothing more; running tasks continue."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no task is held and no claim is under way."""

    @property
    def is_still(self) -> bool:
        """Whether nothing that it has started is running, apart from suspects."""
        return self.is_idle

    @abstractmethod
    def hold(self) -> None:
        """Start no further tasks until :meth:`resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Start tasks again after :meth:`hold`."""

    @abstractmethod
    def resize(self, slots: int) -> None:
        """Run ``slots`` calls at a time from now on.  Running calls continue."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Stop running tasks as far as possible."""

    @abstractmethod
    def close(self) -> None:
        """Give up the remaining tasks, and end the threads."""


# -- how long calls of a handler take, which decides how many tasks are claimed at a time -----------------------------

_SHORTEST = 1e-6


class CallDurations:
    """The mean duration of a handler's calls, in which recent calls weigh more."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, seconds: float | None) -> None:
        """Take the duration of a call into account; ``None`` if it was never started.  Thread-safe."""
        if seconds is not None:
            self._mean = seconds if self._mean is None else 0.9 * self._mean + 0.1 * seconds

    def calls_within(self, seconds: float) -> int:
        """Return how many calls, one after another, end within ``seconds``; 0 as long as none has ended."""
        return 0 if self._mean is None else int(seconds / max(self._mean, _SHORTEST))


# -- runs suspects: tasks that may have crashed a process. Each runs alone, so that the next crash has one cause ------

PLACES = 4
"""The number of suspects of one handler that run at a time, in child processes."""
TICK = 0.005
"""Seconds between two checks whether the running tasks have ended."""


class SuspectProcesses:
    """Child processes for the suspects of one handler, each for one of them at a time."""

    def __init__(self, children: Children, executor: IsolatedExecutor, done: Done) -> None:
        self._children = children
        self._executor = executor
        self._done = done
        self._checked: asyncio.Task[bool] | None = None
        self.places = asyncio.Semaphore(PLACES)

    @cached_property
    def pool(self) -> ThreadPool:
        """The threads for suspects, created when first used."""
        return ThreadPool(self._executor, PLACES, "suspects", self._done)

    async def can_start(self) -> bool:
        """Return whether child processes can load the worker.  The first call starts one."""
        if self._checked is None:
            self._checked = asyncio.create_task(self._check())
        return await self._checked

    async def _check(self) -> bool:
        try:
            await asyncio.to_thread(self._children.prepare)
        except ArgumentError as error:
            logger.warning("suspects run alone in this process: %s", error)
            return False
        return True

    def close(self) -> None:
        """End the threads; does not wait for running jobs."""
        if "pool" in self.__dict__:
            self.pool.close()


class Suspects:
    """Runs suspects one after the other, while this process runs nothing else."""

    def __init__(self) -> None:
        self.fetchers: Sequence[BaseFetcher] = ()
        """All fetchers of the process."""
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._some = asyncio.Event()

    def put(self, run: Callable[[], Awaitable[None]]) -> None:
        """Queue ``run``, which runs one suspect to its end."""
        self._waiting.append(run)
        self._some.set()

    async def run(self, backoff: Backoff) -> None:
        """Run waiting suspects, one at a time, while all fetchers are held; until cancelled.

        An error ends none but the suspect that it is about, whose row is found again.
        """
        await keep_running(self._turn, lambda: False, backoff)

    async def _turn(self) -> None:
        if not self._waiting:
            self._some.clear()
            await self._some.wait()
        for fetcher in self.fetchers:
            fetcher.hold()
        try:
            await until(lambda: all(fetcher.is_still for fetcher in self.fetchers))
            while self._waiting:
                await self._waiting.popleft()()
        finally:
            for fetcher in self.fetchers:
                fetcher.resume()  # before the pause after an error, so that the others run meanwhile


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    while not condition():
        await asyncio.sleep(TICK)


# -- the state that the parts of a running worker share ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The settings and services that the parts of one run share."""

    given_name: str
    """The worker's name, as given or ``host:pid``."""
    process: int = field(default_factory=os.getpid)
    """The ID of this process."""
    poll: timedelta
    """The longest time between two queries for work."""
    database: Database
    paused: PausedQueues
    in_flight: InFlight
    completers: Mapping[QueueSpec, Completer]
    children: Mapping[Handler, Children]
    """The child processes of handlers that have some."""
    apart: Mapping[Handler, Children]
    """The child processes for suspects."""
    reports: Reports
    tokens: WorkerTokens = field(default_factory=WorkerTokens)
    """Generates the tokens of all claims."""
    started: StartedTasks = field(default_factory=StartedTasks)
    suspects: Suspects = field(default_factory=Suspects)
    _has_plain_name: Event = field(default_factory=Event, init=False)
    _queries: dict[Handler, tuple[tuple[Where, ...], ClaimQuery]] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        """The name stored in ``claimed_by``: in ASCII if claims have failed, perhaps because it cannot be stored."""
        return ascii_text(self.given_name)[:LONGEST_NAME] if self._has_plain_name.is_set() else self.given_name

    def adapter(self, spec: QueueSpec) -> Adapter:
        """Return the adapter of a queue's engine."""
        return adapter_for(self.database.engine(spec).dialect)

    def claim_backoff(self, handler: Handler) -> Backoff:
        """Return the pauses of a fetcher whose claims fail."""
        what, claims = f"claim {handler.entity.__name__}", (handler.spec.table.fullname, handler)
        return Backoff(
            what, self.reports, self.adapter(handler.spec), claims=claims, on_broken=self._has_plain_name.set
        )

    def note_claim(self, handler: Handler, session: Session) -> bool:
        """Report that a claim of the handler has succeeded, and the rows that it has set aside; return whether there
        are any, so that another claim is worth trying at once."""
        number = unreadable_rows(session)
        self.reports.liveness.claims_work(handler.spec.table.fullname, handler)
        self.reports.unreadable(handler.spec, number)
        return number > 0

    def claim_query(self, handler: Handler) -> ClaimQuery | None:
        """Return the parameters of the handler's claims, or ``None`` while its queue is paused."""
        more = self.paused.where(handler.spec)
        if more is None:
            self.reports.liveness.claims_work(handler.spec.table.fullname, handler)  # there are none that could fail
            return None
        kept = self._queries.get(handler)
        if kept is None or kept[0] is not more:
            kept = self._queries[handler] = (
                more,
                ClaimQuery(handler.spec, (*handler.where, *more), options=handler.options),
            )
        return kept[1]
