"""The relay: fetches messages, hands them to the application's publisher, and records the outcomes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy.orm import Session

from .._support.errors import ArgumentError
from .._support.texts import error_text, logger_of
from ..dialects import adapter_for
from ..operations import brief
from ..queue.spec import Where
from ..transaction import claimer_name
from ..worker import (
    COMPLETED,
    RELEASED,
    BaseFetcher,
    DaemonThreads,
    Handler,
    Job,
    Outcome,
    Reports,
    Sessions,
    Worker,
    WorkerContext,
    handler_of,
    in_task,
    is_coroutine,
    keep_running,
    outcome_of,
    plain_failure,
    track,
    transaction_limit,
    write_outcomes,
)
from .claims import claim_messages, outbox_of

if TYPE_CHECKING:
    from .claims import M


# -- delivery of messages to the application's publisher --------------------------------------------------------------

logger = logger_of("sqlqueue.worker")
Publish: TypeAlias = Callable[[list[Any]], object]
"""A function or coroutine function that takes a list of messages."""


class Delivery:
    """Publishes messages together; if that fails, one by one, so that a bad message does not hold back other keys."""

    def __init__(self, publish: Publish, *, is_coroutine: bool, reports: Reports) -> None:
        self._publish = publish
        self._is_coroutine = is_coroutine
        self._reports = reports
        self._threads = DaemonThreads(1, "relay")
        self.stopping = False
        """Whether the publisher must not be called again."""

    def close(self) -> None:
        """Release the publisher's thread."""
        self._threads.shutdown()

    async def deliver(self, jobs: Sequence[Job], outcomes: dict[Job, Outcome]) -> None:
        """Publish ``jobs`` and store the outcomes of those that were tried in ``outcomes``.

        The messages of a key are published in order; after one that fails, no more of its key are published.
        """
        error = await self._try(jobs)
        if error is None or len(jobs) == 1:
            for job in jobs:
                self._note(job, error, outcomes)
            return
        said = brief(error_text(error))
        logger.warning("publishing %d messages together failed, publishing them one by one: %s", len(jobs), said)
        for line in _lines(jobs):
            await self._deliver_line(line, outcomes)

    async def _deliver_line(self, line: Sequence[Job], outcomes: dict[Job, Outcome]) -> None:
        for job in line:
            if self.stopping or job.is_lost:
                return
            error = await self._try([job])
            self._note(job, error, outcomes)
            if error is not None:
                return

    async def _try(self, jobs: Sequence[Job]) -> BaseException | None:
        messages = [job.task for job in jobs]
        for job in jobs:
            job.begin()
        running = self._reports.running(jobs[0]) if len(jobs) == 1 else None
        with running or nullcontext():
            context = copy_context()
            if not self._is_coroutine:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, lambda: context.run(self._call, messages))
            try:
                await in_task(context.run(self._publish, messages), context)  # type: ignore[arg-type]
            except BaseException as error:
                if _cancels(error):
                    raise
                return error
            return None

    def _call(self, messages: list[Any]) -> BaseException | None:
        try:
            result = self._publish(messages)
        except BaseException as error:
            return error
        if not inspect.isawaitable(result):
            return None
        if inspect.iscoroutine(result):
            result.close()
        return ArgumentError(f"{self._publish!r} returns an awaitable, which is not awaited: make it async def")

    def _note(self, job: Job, error: BaseException | None, outcomes: dict[Job, Outcome]) -> None:
        job.end()
        outcomes[job] = COMPLETED if error is None else outcome_of(error, is_last=job.described.is_last)
        self._reports.finished(job, outcomes[job], error)


def _cancels(error: BaseException) -> bool:
    """Return whether the calling task is to end; otherwise, something that the publisher awaited was cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _lines(jobs: Sequence[Job]) -> Iterable[list[Job]]:
    """Return the jobs of each key, compared exactly, as some engines do not; each job without a key separately."""
    lines: dict[object, list[Job]] = {}
    for job in jobs:
        message_key = getattr(job.task, job.handler.spec.attributes["message_key"])
        lines.setdefault(job if message_key is None else message_key, []).append(job)
    return lines.values()


# -- the fetcher of a relay: claims messages and publishes them in batches --------------------------------------------


class RelayFetcher(BaseFetcher):
    """Publishes batches one after the other; the next is claimed after the outcomes of the last are written."""

    def __init__(self, handler: Handler, context: WorkerContext, delivery: Delivery) -> None:
        super().__init__(handler, context)
        self._delivery = delivery
        self._busy = False
        self._free = asyncio.Event()
        self._free.set()
        self._jobs: Sequence[Job] = ()
        self._publishing: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being claimed or published."""
        return not self._busy

    def resize(self, slots: int) -> None:
        """Ignore ``slots``: the order of messages allows no more than one batch at a time."""

    def hold(self) -> None:
        self._free.clear()

    def resume(self) -> None:
        self._free.set()

    def drain(self) -> None:
        """Stop claiming, and stop calling the publisher."""
        self._delivery.stopping = True
        super().drain()
        self._free.set()

    def abandon(self, reason: str) -> None:
        """Cancel a publishing coroutine, or abandon a publishing thread, and release messages without an outcome."""
        for job in self._jobs:
            job.reason = reason
        if self._publishing is not None:
            self._publishing.cancel(reason)

    def close(self) -> None:
        """Release the publisher's thread and stop polling."""
        self._poller.close()
        self._delivery.close()

    async def run(self) -> None:
        """Claim and publish until :meth:`drain`, through outages of the database."""
        await keep_running(self._turn, lambda: self._draining, self._context.claim_backoff(self.handler))

    async def _turn(self) -> None:
        await self._free.wait()
        if self._draining:
            return
        self._poller.expect()
        outcomes: dict[Job, Outcome] = {}
        self._busy = True
        try:
            self._jobs = await self._claim()
            if self._jobs and not self._draining:
                await self._publish(outcomes)
        finally:
            self._busy = False
        if self._jobs:
            await self._settle(outcomes)
            self._poller.refresh()
            await self._poller.promote()
        elif not self._draining:
            await self._poller.wait()

    async def _claim(self) -> Sequence[Job]:
        where = self._context.paused.where(self.handler.spec)
        if where is None:
            return ()
        return await self._claimed(lambda session: _claim(session, self.handler, where, self._context.name))

    async def _publish(self, outcomes: dict[Job, Outcome]) -> None:
        self._publishing = asyncio.create_task(self._delivery.deliver(self._jobs, outcomes))
        try:
            await asyncio.wait([self._publishing])
        finally:
            self._publishing.cancel()
        if not self._publishing.cancelled():
            self._publishing.result()

    async def _settle(self, outcomes: dict[Job, Outcome]) -> None:
        """Write all outcomes in one transaction, so that the messages of a key change together."""
        completer = self._context.completers[self.handler.spec]
        await completer.write([(job, outcomes.get(job, RELEASED)) for job in self._jobs])


def _claim(session: Session, handler: Handler, where: Sequence[Where], claimer: str) -> Sequence[Any]:
    entity: Any = handler.entity
    return claim_messages(session, entity, *where, limit=handler.batch, lease=handler.lease, claimed_by=claimer)


# -- the relay: a worker that publishes the messages of an outbox -----------------------------------------------------


class Relay(Worker):
    """Publishes the messages of an outbox until it is stopped.  Survives outages of the database and of the broker.

    ``publish`` is a function, called in a thread, or a coroutine function.  It takes a list of up to ``batch``
    messages, those of a key together and in order, and returns when the broker has accepted all of them.  They are
    then completed, in one transaction.  The messages are detached, with their columns loaded; consumers can use
    ``message.id`` to recognize messages that they have already received.

    *At least once*: a message that was published but not completed, because of a crash or an expired lease, is
    published again, with the same primary key.

    *In order*: each call gets, for each of its keys, a sequence without gaps from the first message that is not
    completed.  Thus, with any number of relays, and through any failures, no message is published before all earlier
    ones of its key were published at least once.  Consumers that drop repeated messages see them in order.  For this,
    ``publish`` must keep the given order, and publish no more messages of a key after one that the broker has not
    accepted.

    An exception means that not all messages were published.  They are then published one by one, in separate calls.
    A message that fails is retried after the model's backoff, and holds back the later ones of its key, but no others;
    ``publish`` may raise :class:`.Retry`, :class:`.Snooze`, :class:`.Discard` and :class:`.Cancel`.  Discarded and
    cancelled messages hold back nothing.

    ``lease``: by default the model's; it is extended while the relay lives.  When the lease of a killed relay expires,
    others continue with its keys.  ``name``, ``poll``, ``grace``, ``notify``: see :class:`.Worker`.  A relay is a
    worker: it is run by :meth:`run`, :meth:`serve` and ``sqlqueue work``, and can also have handlers.
    """

    def __init__(
        self,
        sessions: Sessions,
        entity: type[M],
        publish: Callable[[list[M]], object],
        *,
        batch: int = 100,
        lease: timedelta | None = None,
        name: str | None = None,
        poll: timedelta = timedelta(seconds=3),
        grace: timedelta = timedelta(seconds=30),
        notify: bool = True,
    ) -> None:
        super().__init__(sessions, name=name, poll=poll, grace=grace, notify=notify)
        outbox_of(entity)
        handler = handler_of(_one(publish), entity, (), concurrency=1, lease=lease, batch=batch)
        self._deliver = partial(Delivery, publish, is_coroutine=handler.is_coroutine, reports=self._reports)
        self._outbox = replace(handler, fetcher=self._fetcher)
        self._within = transaction_limit(handler.lease)
        self.handlers.append(self._outbox)  # for code that treats it as a plain handler, such as sqlqueue.testing

    def relay_once(self) -> int:
        """Publish one batch in the calling thread, and return how many messages were published.

        For tests and cron jobs: ``while relay.relay_once(): pass``.  Failures of ``publish`` are recorded and logged,
        as with :meth:`run`; database errors are raised.  The lease is not extended meanwhile.
        """
        return asyncio.run(self._relay_once())

    async def serve_once(self) -> int:
        """Publish one batch like :meth:`relay_once`, in the running event loop of the application."""
        handler, outcomes = self._outbox, dict[Job, Outcome]()
        track(self._database.engine(handler.spec), self._within)
        claimer = self._settings.name or claimer_name()
        messages = await self._database.run(lambda session: _claim(session, handler, (), claimer), self._within)
        jobs = [Job(handler, message) for message in messages]
        delivery = self._deliver()
        try:
            if jobs:
                await delivery.deliver(jobs, outcomes)
                await self._write([(job, outcomes.get(job, RELEASED)) for job in jobs])
        finally:
            delivery.close()
        return sum(outcome.kind == "completed" for outcome in outcomes.values())

    async def _relay_once(self) -> int:
        try:
            return await self.serve_once()
        finally:
            await self._database.end(0)
            await self._database.dispose({self._database.engine(self._outbox.spec)})

    async def _write(self, outcomes: Sequence[tuple[Job, Outcome]], *, is_plain: bool = False) -> None:
        """Write the outcomes; a plain failure instead of one that the database does not accept, as a worker does.

        ``is_plain``: they are such a failure already.
        """
        settled = [(job.claim, outcome) for job, outcome in outcomes]
        try:
            lost = await self._database.run(lambda session: write_outcomes(session, settled), self._within)
        except Exception as error:
            adapter = adapter_for(self._database.engine(self._outbox.spec).dialect)
            if is_plain or not adapter.connections.is_rejection(error):
                raise
            if len(outcomes) > 1:
                for each in outcomes:
                    await self._write([each])
                return
            ((job, outcome),) = outcomes
            failure = plain_failure(outcome, error, job.described.number)
            self._reports.finished(job, failure, error)
            await self._write([(job, failure)], is_plain=True)
            return
        for job, _ in outcomes:
            if job.claim in lost:
                self._reports.lost(job)

    def _fetcher(self, handler: Handler, context: WorkerContext) -> RelayFetcher:
        return RelayFetcher(handler, context, self._deliver())


def _one(publish: Callable[[list[M]], Any]) -> Callable[[M], object]:
    """Return ``publish`` as a handler of single messages."""
    try:
        inspect.signature(publish).bind(())
    except TypeError as error:
        raise ArgumentError(f"publish={publish!r}: give a function of one argument, the list of messages") from error

    async def publish_one_async(message: M) -> None:
        await publish([message])

    def publish_one(message: M) -> object:
        return publish([message])

    return publish_one_async if is_coroutine(publish) else publish_one
