"""``mode="lock"``: claim, handler and completion in one transaction, protected by the row lock alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from ...queue.spec import Identity
from ..concurrency.event_loop import happens_within, soon
from ..concurrency.threads import DaemonThreads
from ..handling.handlers import Handler
from ..reporting.reports import logger
from .base import BaseFetcher
from .context import WorkerContext
from .locking_executor import LockingExecutor
from .poller import Poller
from .readiness import EVERY, Readiness


class LockModeFetcher(BaseFetcher):
    """Runs one handler in ``concurrency`` loops, each of which claims its own tasks."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self._handler = handler
        self._context = context
        self._poller = Poller(handler, context)
        self._executor = LockingExecutor(handler, context, self._suspect)
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads(handler.concurrency, handler.name)
        self._slots: dict[int, asyncio.Task[None]] = {}
        self.slots = handler.concurrency
        self._work, self._none = asyncio.Event(), asyncio.Event()
        self._draining = False
        self._claims = False
        """Whether tasks have been claimed since they were last promoted."""
        self._busy = 0
        self._failure: BaseException | None = None
        """The error of a loop that has failed."""

    @property
    def is_idle(self) -> bool:
        """Whether no loop is claiming or running a task."""
        return not self._busy

    def hold(self) -> None:
        self._executor.held = True

    def resume(self) -> None:
        self._executor.held = False
        self._work.set()

    def resize(self, slots: int) -> None:
        self.slots = slots
        self._threads.grow(slots)
        if self._slots and not self._draining:
            self._start()
            self._work.set()

    def drain(self) -> None:
        self._draining = self._executor.ending = True
        self._poller.close()
        self._work.set()
        self._none.set()

    def abandon(self, reason: str) -> None:
        """Cancel coroutines, which roll back.  Threads end with the process, which rolls back their transactions."""
        self._executor.abandoned = True
        for slot in self._slots.values():
            slot.cancel(reason)

    def close(self) -> None:
        self._poller.close()
        self._threads.shutdown()

    async def run(self) -> None:
        """Work until :meth:`drain`.  While there is nothing to do, one poller serves all loops.

        Raises the error of a loop that has failed.
        """
        self._work.set()
        self._start()
        backoff = self._context.claim_backoff(self._handler)
        readiness, is_limited = Readiness(self._handler, self._context), self._handler.spec.is_limited
        while not self._draining:
            none = await happens_within(self._none, EVERY)
            if self._failure is not None:
                raise self._failure
            self._none.clear()
            try:
                # a key at its limit has available tasks even if a claim found none
                if self._claims and (is_limited or not none):
                    self._claims = False
                    await readiness.now_and_then()
                if none:
                    await self._poller.wait()
                backoff.reset()
            except Exception as error:
                await backoff.pause_after(error)
            self._work.set()
        await asyncio.gather(*self._slots.values(), return_exceptions=True)

    def _start(self) -> None:
        """Start the loops that are missing."""
        for number in range(self.slots):
            if number not in self._slots or self._slots[number].done():
                self._slots[number] = slot = asyncio.create_task(self._slot(number))
                slot.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, slot: asyncio.Task[None]) -> None:
        """Start a loop again that something has cancelled; let :meth:`run` raise the error of one that has failed."""
        if not slot.cancelled():
            self._failure = self._failure or slot.exception()
            self._none.set()
        elif not self._draining:
            logger.error("a slot of the handler %s was cancelled, and is started again", self._handler.name)
            self._start()

    async def _slot(self, number: int) -> None:
        backoff = self._context.claim_backoff(self._handler)

        def found() -> bool:
            backoff.reset()
            self._poller.refresh()
            self._claims = True
            return number < self.slots

        while not self._draining and number < self.slots:
            await self._work.wait()
            self._poller.expect()
            try:
                await self._perform(partial(self._executor.work, found))
                backoff.reset()
                self._work.clear()
                self._none.set()
            except Exception as error:
                await backoff.pause_after(error)

    def _suspect(self, identity: Identity) -> None:
        """Queue a task to be run alone.  Thread-safe."""
        run = partial(self._perform, partial(self._executor.work_alone, identity))
        soon(self._loop, partial(self._context.suspects.put, run))

    async def _perform(self, work: Callable[[], object]) -> None:
        if self._draining:
            return
        self._busy += 1
        try:
            if self._handler.is_coroutine:
                from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

                await greenlet_spawn(work)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, work)
        finally:
            self._busy -= 1
