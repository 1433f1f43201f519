"""Makes the parts of a run from the handlers and settings of its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...dialects import adapter_for
from ...transaction.connection import default_claimer
from ..database.base import Database
from ..database.checkouts import track
from ..database.deadlines import transaction_limit
from ..database.shared import SharedConnections
from ..fetching.base import BaseFetcher
from ..fetching.context import WorkerContext
from ..fetching.fetcher import Fetcher
from ..fetching.lock_mode import LockModeFetcher
from ..fetching.paused import PausedQueues
from ..handling.handlers import Handler, Settings, handled_specs
from ..handling.jobs import InFlight
from ..handling.origin import is_importable, place_of
from ..reporting.health import STALLED
from ..reporting.reports import Reports
from ..running.children import Children
from ..running.completer import Completer
from ..running.heartbeat import BEATS, Heartbeat
from ..running.started import StartedTasks


def make_context(
    handlers: Sequence[Handler],
    database: Database,
    reports: Reports,
    settings: Settings,
    origin: str | None,
    *,
    memory: Any,
) -> WorkerContext:
    """Return the state that the parts of a run share.  Call it on the event loop of the run.

    ``origin``: where child processes import the worker from; ``memory``: for the tasks that the run starts, see
    :class:`.StartedTasks`.
    """
    _apply_leases(handlers, database, reports)
    specs = handled_specs(handlers)
    in_flight = InFlight()
    completers = {
        spec: Completer(database, adapter_for(database.engine(spec).dialect), in_flight, reports) for spec in specs
    }
    paused = PausedQueues(specs, database, settings.poll, reports)
    children = _children(handlers, origin, reports, of=_has_children)
    importable = origin if is_importable(origin) else None
    context = WorkerContext(
        given_name=settings.name or default_claimer(),
        poll=settings.poll,
        database=database,
        paused=paused,
        in_flight=in_flight,
        completers=completers,
        children=children,
        apart=_children(handlers, importable, reports, of=_may_have_suspects) | children,
        reports=reports,
        started=StartedTasks(memory),
    )
    context.started.claim_by(context.tokens.worker)
    return context


def make_fetchers(handlers: Sequence[Handler], context: WorkerContext) -> list[BaseFetcher]:
    """Return the fetchers, one for each handler in the same order, and make them known to the suspects."""
    fetchers: list[BaseFetcher] = [
        (each.fetcher or (LockModeFetcher if each.mode == "lock" else Fetcher))(each, context) for each in handlers
    ]
    context.suspects.fetchers = fetchers
    return fetchers


def make_heartbeats(handlers: Sequence[Handler], context: WorkerContext) -> list[Heartbeat]:
    """Return the threads that extend leases, one for each queue.  They have not been started."""
    specs, database = handled_specs(handlers), context.database
    own = SharedConnections(database.own, len(specs))
    return [Heartbeat(spec, handlers, database, context.in_flight, context.reports, own=own) for spec in specs]


def _apply_leases(handlers: Sequence[Handler], database: Database, reports: Reports) -> None:
    """Limit the silence of connections, and the time without a response for which the worker counts as ready."""
    within = transaction_limit(min(handler.lease for handler in handlers))
    for spec in handled_specs(handlers):
        track(database.engine(spec), within)
    reports.liveness.ready_within = min(STALLED, within.total_seconds() * BEATS)


def _children(
    handlers: Sequence[Handler], origin: str | None, reports: Reports, *, of: Callable[[Handler], bool]
) -> dict[Handler, Children]:
    """Return the child processes of some handlers; none if these could not import the worker."""
    if origin is None:
        return {}
    return {each: Children(place_of(each, handlers, origin), each, reports) for each in handlers if of(each)}


def _has_children(handler: Handler) -> bool:
    return handler.isolation == "process"


def _may_have_suspects(handler: Handler) -> bool:
    """Return whether suspected tasks of this handler run in child processes, unlike its other tasks."""
    return handler.mode == "lease" and handler.fetcher is None and handler.isolation is None
