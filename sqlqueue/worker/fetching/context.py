"""What the parts of a running worker share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ...dialects import adapter_for
from ...dialects.base import Adapter
from ...operations.claiming import Wanted
from ...queue.spec import QueueSpec, Where
from ..database.base import Database
from ..handling.handlers import Handler
from ..handling.jobs import InFlight, Job
from ..handling.outcomes import Outcome
from ..reporting.reports import Reports
from ..running.completer import Completer
from .paused import PausedQueues


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The settings and services that the parts of one run share."""

    name: str
    """Stored in ``claimed_by``."""
    poll: timedelta
    """The longest time between two queries for work."""
    database: Database
    paused: PausedQueues
    in_flight: InFlight
    completers: Mapping[QueueSpec, Completer]
    reports: Reports
    _wanted: dict[Handler, tuple[tuple[Where, ...], Wanted]] = field(default_factory=dict, init=False)

    def adapter(self, spec: QueueSpec) -> Adapter:
        return adapter_for(self.database.engine(spec).dialect)

    def wanted(self, handler: Handler) -> Wanted | None:
        """Return the parameters of the handler's claims, or ``None`` while its queue is paused."""
        more = self.paused.where(handler.spec)
        if more is None:
            return None
        kept = self._wanted.get(handler)
        if kept is None or kept[0] is not more:
            kept = self._wanted[handler] = more, Wanted(handler.spec, (*handler.where, *more), options=handler.options)
        return kept[1]

    def settle(self, job: Job, outcome: Outcome | None) -> None:
        """Have ``outcome`` written, or forget ``job`` if there is none.  Thread-safe."""
        if outcome is None:
            self.in_flight.remove(job)
        else:
            self.completers[job.handler.spec].put(job, outcome)
