"""What the parts of a running worker share."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from threading import Event
from typing import Any

from sqlalchemy.orm import Session

from .._support.errors import WorkerTokens
from .._support.texts import ascii_text
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..model.declaration import LONGEST_NAME
from ..operations.claiming import ClaimQuery
from ..operations.recording import spoken, unreadable_rows
from ..queue.spec import QueueSpec, Where
from ..transaction import claimer_name, ledger_of
from .children import Children
from .completer import Completer
from .database import Backoff, Database
from .deadlines import track, transaction_limit
from .executor import StartedTasks
from .handlers import Handler, Place, Settings, handled_specs, is_importable
from .jobs import InFlight
from .news import PausedQueues
from .reports import SHORTEST_STALL, STALLED, Reports
from .threads import soon

BEATS = 3
"""Heartbeats per lease."""

# -- requests to stop a run: after its grace period, without waiting, or once its running handlers have ended ---------


class StopRequest:
    """Whether a run is to stop, and how long it waits for running handlers.

    Created on the event loop of the run.  :meth:`make` may be called on any thread.
    """

    def __init__(self, grace: timedelta) -> None:
        self.grace = grace.total_seconds()
        """Seconds for which running handlers may continue after the request."""
        self._loop = asyncio.get_running_loop()
        self._made, self._immediate = asyncio.Event(), asyncio.Event()
        self._deadline = math.inf
        """When running handlers are abandoned, by the loop's time."""
        self._drains = False
        """Whether handlers may run however long they take."""

    def make(self, *, at_once: bool) -> None:
        """Request a stop after the grace period, which begins now, or with ``at_once`` one without waiting."""
        soon(self._loop, self._begin_grace)
        soon(self._loop, self._made.set)
        if at_once:
            soon(self._loop, self._immediate.set)

    def drain(self) -> None:
        """Request a stop once all running handlers have ended, however long they take."""
        self._drains = True
        self._made.set()

    async def wait(self) -> None:
        """Wait for a request."""
        await self._made.wait()

    def begin(self) -> None:
        """Record that the run is stopping, whatever the reason: the grace period begins, unless the run drains."""
        if not self._drains:
            self._begin_grace()

    @property
    def patience(self) -> str:
        """How long a run that stops waits for running handlers, as text."""
        if self._drains:
            return "as long as it takes"
        left = 0.0 if self.is_immediate else max(0.0, self._deadline - self._loop.time())
        return f"up to {spoken(timedelta(seconds=round(left, 1)))}"

    @property
    def is_immediate(self) -> bool:
        """Whether the run is to end without waiting."""
        return self._immediate.is_set()

    @property
    def gives_up_handlers(self) -> bool:
        """Whether running handlers have no time left."""
        return self.is_immediate or self._loop.time() >= self._deadline

    def _begin_grace(self) -> None:
        self._deadline = min(self._deadline, self._loop.time() + self.grace)


# -- the settings and services that the parts of one run share --------------------------------------------------------


class WorkerContext:
    """What the parts of one run share.  Created on the event loop of the run."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        database: Database,
        reports: Reports,
        settings: Settings,
        places: Mapping[Handler, Place],
        *,
        memory: Any,
    ) -> None:
        """``places``: where child processes find the handlers; ``memory``: for the tasks that the run starts, see
        :class:`.StartedTasks`."""
        self.specs = handled_specs(handlers)
        within = transaction_limit(min(handler.lease for handler in handlers))
        for spec in self.specs:
            track(database.engine(spec), within)
        beat = min(handler.lease for handler in handlers).total_seconds() / BEATS
        reports.liveness.stalls_within = min(max(SHORTEST_STALL, beat), STALLED)
        reports.liveness.ready_within = min(STALLED, within.total_seconds() * BEATS)
        self._given_name = settings.name or claimer_name()
        self._has_plain_name = Event()
        self.process = os.getpid()
        self.poll = settings.poll
        self.database = database
        self.reports = reports
        self.stopping = StopRequest(settings.grace)
        self.tokens = WorkerTokens()
        """Generates the tokens of all claims."""
        self.started = StartedTasks(memory)
        self.started.claim_by(self.tokens.worker)
        self.in_flight = InFlight()
        self.paused = PausedQueues(self.specs, database, settings.poll, reports)
        self.completers = {
            spec: Completer(database, self.adapter(spec), self.in_flight, reports) for spec in self.specs
        }
        self.apart: dict[Handler, Children] = {}
        """The child processes for suspects; those of a handler with ``isolation`` run its other tasks too."""
        for handler in handlers:
            place = places.get(handler)
            if place is None:
                continue
            may_have_suspects = handler.mode == "lease" and handler.fetcher is None and is_importable(place.origin)
            if may_have_suspects or handler.isolation is not None:
                self.apart[handler] = Children(place, handler, reports)
        self.suspects: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        """Each runs one suspect to its end, alone in this process, see :func:`.run_suspects`."""
        self.used_up: dict[Handler, Sequence[str]] = {}
        """The keys whose rates allowed no start when the last claim of a handler found too few tasks."""
        self._queries: dict[Handler, tuple[tuple[Where, ...], ClaimQuery]] = {}

    @property
    def name(self) -> str:
        """The name stored in ``claimed_by``: in ASCII if claims have failed, perhaps because it cannot be stored."""
        return ascii_text(self._given_name)[:LONGEST_NAME] if self._has_plain_name.is_set() else self._given_name

    def adapter(self, spec: QueueSpec) -> Adapter:
        """Return the adapter of a queue's engine."""
        return adapter_for(self.database.engine(spec).dialect)

    def claim_backoff(self, handler: Handler) -> Backoff:
        """Return the pauses of a fetcher whose claims fail."""
        what, claims = f"claim {handler.spec.name}", (handler.spec.name, handler)
        adapters = [self.adapter(handler.spec)]
        return Backoff(what, self.reports, adapters, claims=claims, on_broken=self._has_plain_name.set)

    def note_claim(self, handler: Handler, session: Session) -> bool:
        """Report that a claim of the handler has succeeded, and the rows that it has set aside or cancelled; return
        whether there are any, or it ended early, so that another claim is worth trying at once."""
        number, ledger = unreadable_rows(session), ledger_of(session)
        self.reports.liveness.claims_work(handler.spec.name, handler)
        self.reports.unreadable(handler.spec, number)
        self.reports.expired(handler.spec, ledger.expired)
        self.used_up[handler] = ledger.used_up
        return number + ledger.expired > 0 or ledger.is_cut

    def claim_query(self, handler: Handler) -> ClaimQuery | None:
        """Return the parameters of the handler's claims, or ``None`` while its queue is paused."""
        more = self.paused.where(handler.spec)
        if more is None:
            self.reports.liveness.claims_work(handler.spec.name, handler)  # there are none that could fail
            return None
        kept = self._queries.get(handler)
        if kept is None or kept[0] is not more:
            kept = self._queries[handler] = (
                more,
                ClaimQuery(handler.spec, (*handler.where, *more), options=handler.options),
            )
        return kept[1]
