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
from ..dialects import adapter_for
from ..transaction.connection import default_claimer
from ..worker import Job, Worker
from ..worker.database.base import Sessions
from ..worker.database.checkouts import track
from ..worker.database.deadlines import transaction_limit
from ..worker.fetching.context import WorkerContext
from ..worker.handling.handlers import Handler, handler_of, is_coroutine
from ..worker.handling.outcomes import RELEASED, Outcome, plain_failure, write_outcomes
from .delivery import Delivery
from .fetcher import RelayFetcher
from .message_claims import claim_messages, outbox_of
from .order import is_first

if TYPE_CHECKING:
    from .message_claims import M


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
        self._deliver = partial(Delivery, publish, is_coroutine=handler.is_coroutine, reports=self._reports)
        self._outbox = replace(handler, fetcher=self._fetcher)
        self._within = transaction_limit(handler.lease)
        self._entity = entity
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
        claim = partial(
            claim_messages,
            limit=handler.batch,
            lease=handler.lease,
            claimed_by=self._settings.name or default_claimer(),
        )
        track(self._database.engine(handler.spec), self._within)
        messages = await self._database.run(lambda session: claim(session, self._entity), self._within)
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
        """Write the outcomes; a plain failure instead of one that the database does not accept, as a worker does."""
        settled = [(job.claim, outcome) for job, outcome in outcomes]
        try:
            lost = await self._database.run(lambda session: write_outcomes(session, settled), self._within)
        except Exception as error:
            if not adapter_for(self._database.engine(self._outbox.spec).dialect).errors.is_rejection(error):
                raise
            if len(outcomes) > 1:
                for each in outcomes:
                    await self._write([each])
                return
            ((job, outcome),) = outcomes
            failure = plain_failure(outcome, error, job.attempt.number)
            if failure == outcome:
                raise
            self._reports.finished(job, failure, error)
            await self._write([(job, failure)])
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
