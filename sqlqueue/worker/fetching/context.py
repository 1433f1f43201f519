"""The state that the parts of a running worker share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

from sqlalchemy.orm import Session

from ..._support.errors import WorkerTokens
from ..._support.texts import ascii_text
from ...dialects import adapter_for
from ...dialects.base import Adapter
from ...model.declaration import LONGEST_NAME
from ...operations.claiming import ClaimQuery
from ...operations.unreadable import unreadable_rows
from ...queue.spec import QueueSpec, Where
from ..database.backoff import Backoff
from ..database.base import Database
from ..handling.handlers import Handler
from ..handling.jobs import InFlight, Job
from ..handling.outcomes import Outcome
from ..reporting.reports import Reports
from ..running.children import Children
from ..running.completer import Completer
from ..running.started import StartedTasks
from .paused import PausedQueues
from .suspects import Suspects


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

    def settle(self, job: Job, outcome: Outcome | None) -> None:
        """Queue ``outcome`` for writing, or forget ``job`` if there is none.  Thread-safe."""
        if outcome is None:
            self.in_flight.remove(job)
        else:
            self.completers[job.handler.spec].put(job, outcome)
