"""The relay: a worker that publishes the messages of an outbox."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from .._support.exc import ArgumentError
from ..operations import default_claimer
from ..worker import Job, Worker
from ..worker.database.base import Sessions
from ..worker.fetching.context import WorkerContext
from ..worker.handling.handlers import Handler, handler_of, is_coroutine
from ..worker.handling.outcomes import RELEASED, Outcome, write_outcomes
from .delivery import Delivery
from .fetcher import RelayLane
from .message_claims import claim_messages, outbox_of
from .order import is_first

if TYPE_CHECKING:
    from .message_claims import M


class Relay(Worker):
    """Publishes the messages of an outbox, until it is stopped.  Survives outages of the database and of the broker.

    ``publish`` is a function, called in a thread, or a coroutine function.  It is given up to ``batch`` messages, those
    of a key one after the other in its order, and returns when all of them are taken over.  Then they are completed, in
    one transaction.  They are detached, their columns are loaded; ``message.id`` is for consumers to know by which
    messages they have had.

    *At least once*: a message that was published and not completed, for a crash or a lease that ended, is published
    again, with the same primary key.

    *In order*: each call is given, of a key, a run without gaps from the first message that was not completed.  So with
    any number of relays, and whatever befalls them, nobody publishes a message before all earlier ones of its key were
    published at least once.  Consumers that drop what they have had see them in order.  What that asks of ``publish``:
    it keeps the order it is given, and publishes no more of a key after a message that was not taken over.

    An exception means that not all were published.  The messages are then published one by one, in calls of their own.
    One that fails is retried after the model's backoff, and holds back those after it in its key, but no others;
    :class:`.Retry`, :class:`.Snooze`, :class:`.Discard` and :class:`.Cancel` are known.  What is discarded or cancelled
    holds back nothing any more.

    ``lease``: the model's if not given; it is extended while the relay lives.  After that time, others go on with the
    keys of one that was killed.  ``name``, ``poll``, ``grace``, ``notify``: see :class:`.Worker`, which it is: it is
    run by :meth:`run`, :meth:`serve` and ``sqlqueue work``, and may have handlers too.
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
        first = is_first(outbox_of(entity))
        handler = handler_of(
            _one(publish),
            entity,
            (first,),
            concurrency=1,
            timeout=None,
            lease=lease,
            batch=batch,
            mode="lease",
        )
        self._deliver = partial(Delivery, publish, is_coroutine=handler.is_coroutine, reports=self.reports)
        self._outbox = replace(handler, fetcher=self._fetcher)
        self._entity = entity
        self.handlers.append(self._outbox)  # for whoever takes it for a plain handler, such as sqlqueue.testing

    def relay_once(self) -> int:
        """Publish one batch, in the calling thread; how many messages were published.

        For tests and cron jobs: ``while relay.relay_once(): pass``.  What fails is recorded and logged, as by
        :meth:`run`; an error of the database is raised.  The lease is not extended meanwhile.
        """
        return asyncio.run(self._relay_once())

    async def serve_once(self) -> int:
        """:meth:`relay_once` in an application's own event loop."""
        handler, outcomes = self._outbox, dict[Job, Outcome]()
        claim = partial(
            claim_messages,
            limit=handler.batch,
            lease=handler.lease,
            claimed_by=self._settings.name or default_claimer(),
        )
        messages = await self._database.run(lambda session: claim(session, self._entity))
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

    async def _write(self, outcomes: Sequence[tuple[Job, Outcome]]) -> None:
        settled = [(job.claim, outcome) for job, outcome in outcomes]
        lost = await self._database.run(lambda session: write_outcomes(session, settled))
        for job, _ in outcomes:
            if job.claim in lost:
                self.reports.lost(job)

    def _fetcher(self, handler: Handler, context: WorkerContext) -> Any:
        return RelayLane(handler, context, self._deliver())


def _one(publish: Callable[[list[M]], Any]) -> Callable[[M], object]:
    """As a handler of single messages."""
    try:
        inspect.signature(publish).bind(())
    except TypeError as error:
        raise ArgumentError(f"publish={publish!r}: a function of one argument, the messages, is needed") from error

    async def publish_one_async(message: M) -> None:
        await publish([message])

    def publish_one(message: M) -> object:
        return publish([message])

    return publish_one_async if is_coroutine(publish) else publish_one
