"""Which workers are registered; commands to them, and the release of what they hold, through rows in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self, TypeGuard

from sqlalchemy import Select, Table, select, update
from sqlalchemy.orm import Session

from .._support.checks import at_once, count
from .._support.errors import ArgumentError, WorkerTokens
from ..model.companions import LIVE, WorkerMixin, WorkerState, needed_companion, worker_state, worker_table
from ..model.declaration import QueueMixin, Target, specs_of
from ..queue.spec import QueueSpec
from ..sql import is_token_of_worker, utcnow
from ..transaction import Access, AnySession, announce, open_, refuse_if_restricted, session_of
from .recording import spoken
from .settling import released_from_worker, settle_some
from .upkeep import held_by, still_held

# -- reads which workers are running, and sends them commands ---------------------------------------------------------

DEFAULT_LIMIT = 1_000
"""The number of workers that :func:`workers` reads by default."""


class Command(StrEnum):
    """A command that a worker has been given."""

    DRAIN = "drain"
    """Claim nothing more, finish the running tasks however long they take, then end."""
    STOP = "stop"
    """End as on SIGTERM: running tasks get the worker's grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerInfo:
    """One handler of a worker, as of its last report."""

    queue: str
    """The table of the queue."""
    functions: tuple[str, ...] | None
    """The names of its registered functions; ``None`` unless it serves a :class:`.JobMixin` by functions."""
    whole: bool
    """Whether it takes all tasks of the queue; otherwise it has criteria, or only some functions."""
    slots: int
    """How many calls run at a time."""
    busy: int
    """How many were running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker, as of its last report."""

    id: str
    """Identifies one run of the worker, for commands to it alone."""
    name: str
    """Its name, as stored in ``claimed_by`` of its tasks."""
    host: str
    """The name of its host."""
    process: int
    """Its process ID."""
    birth: str | None
    """Tells its process from all others of its machine, past ones included; ``None`` where the system cannot."""
    started_at: datetime
    """When it started, by the database's clock, like all times here."""
    seen_at: datetime
    """The time of its last report: one every ten seconds."""
    state: WorkerState
    """Whether it works, as far as is known.  A worker that shuts down cleanly is no longer registered."""
    unheard: timedelta
    """The age of its last report, by the database's clock."""
    stalled_at: datetime | None
    """Since when its event loop has been standing still, if it does."""
    claimer: int
    """The number that distinguishes its claims from those of all other workers."""
    version: str | None
    """The version of the application, as given to the worker."""
    handlers: tuple[HandlerInfo, ...]
    """The handlers that it serves."""
    last_claim_at: datetime | None
    """When it claimed its last task."""
    memory: int | None
    """The resident memory of its process in bytes, without child processes."""
    command: Command | None
    """The command that it has been given."""
    concurrency: int | None
    """The commanded number of calls that each handler runs at a time; ``None``: the number with which it was
    registered."""

    @property
    def is_live(self) -> bool:
        """Whether it works, as far as is known."""
        return self.state is WorkerState.LIVE

    @property
    def slots(self) -> int:
        """The number of calls that run at a time, in all handlers."""
        return sum(handler.slots for handler in self.handlers)

    @property
    def busy(self) -> int:
        """The number of slots that were running a call."""
        return sum(handler.busy for handler in self.handlers)

    @property
    def idle(self) -> int:
        """The number of idle slots."""
        return max(0, self.slots - self.busy)


def workers(session: AnySession, target: Target, *, limit: int | None = DEFAULT_LIMIT) -> list[WorkerInfo]:
    """Return the registered workers of ``target``, sorted by name: a model, a declarative base or its ``MetaData``.

    For a model, these are the workers that serve its queue.  Workers whose last report is older than 35 seconds are
    included, until others remove their rows after an hour; their ``state`` is ``silent``, by the database's clock.  If
    there are more than ``limit``, those that reported last are read; ``None`` reads all.  Runs one statement, without
    locks. Empty if the application has no model for workers, see :class:`.WorkerMixin`.
    """
    if limit is not None:
        count("limit", limit)
    specs = specs_of(target)
    table = worker_table(specs[0].table.metadata)
    if table is None:
        return []
    asked = select(utcnow().label("now"), *table.c)
    if limit is not None:
        asked = asked.order_by(table.c.seen_at.desc(), table.c.id).limit(limit)
    found = _infos(session_of(session), specs[0], asked)
    tables = {spec.table.fullname for spec in specs}
    mine = [each for each in found if any(handler.queue in tables for handler in each.handlers)]
    return sorted(mine, key=lambda each: (each.name, each.started_at, each.id))


def holder_of(session: Session, spec: QueueSpec, token: int) -> WorkerInfo | None:
    """Return the worker whose claim has this token, if it is registered."""
    table = worker_table(spec.table.metadata)
    if table is None or not is_token_of_worker(token):
        return None
    asked = select(utcnow().label("now"), *table.c).where(table.c.claimer == WorkerTokens.of(token).worker)
    return next(iter(_infos(session, spec, asked)), None)


def silent_workers(session: Session, spec: QueueSpec, host: str) -> list[WorkerInfo]:
    """Return the silent workers of a host."""
    table = _registry_of(spec)
    here = (table.c.host == host, table.c.seen_at < utcnow(-LIVE))
    return _infos(session, spec, select(utcnow().label("now"), *table.c).where(*here))


def unserved(session: AnySession, target: Target) -> list[type[QueueMixin]]:
    """Return the models of the queues of ``target`` that no live worker serves; none if the application has no model
    for workers, see :class:`.WorkerMixin`.

    A worker whose handlers have criteria serves the queue, whatever they are.  Runs one statement, without locks.
    """
    specs = specs_of(target)
    if worker_table(specs[0].table.metadata) is None:
        return []
    live = [handler.queue for each in workers(session, target, limit=None) if each.is_live for handler in each.handlers]
    return [spec.entity for spec in specs if spec.holds_tasks and spec.table.fullname not in live]


def drain_workers(session: AnySession, target: Target, worker: str | None = None) -> int:
    """Command workers to claim nothing more, finish their running tasks however long that takes, and exit.

    ``target`` as for :func:`workers`.  ``worker``: the ``id`` or name of the workers to command; by default all.  Runs
    in the session's transaction; workers read the command within ten seconds of the commit. Their processes end with
    status 0, and ``sqlqueue work`` does not replace them, but a service manager that always restarts processes does.

    Returns the number of workers that receive the command: all but silent ones.  Raises :class:`.ConfigurationError` if
    the application has no model for workers, see :class:`.WorkerMixin`, and :class:`.ArgumentError` in a session that
    sees only some of the tasks of these queues, because of its criteria or row-level security.
    """
    return _tell(session, target, worker, {"command": Command.DRAIN.value})


def stop_workers(session: AnySession, target: Target, worker: str | None = None) -> int:
    """Command workers to exit as on SIGTERM, with the grace period for running tasks. See :func:`drain_workers`."""
    return _tell(session, target, worker, {"command": Command.STOP.value})


def set_concurrency(session: AnySession, target: Target, number: int | None, worker: str | None = None) -> int:
    """Set how many calls each handler of some workers runs at a time, at most 10,000; ``None``: the number with which
    it was registered.

    The number applies to whole workers: to each of their handlers, including those of other queues.  A model as
    ``target`` chooses the workers that serve its queue.  To limit what runs across all workers, see
    :class:`.LimitMixin`.

    Running calls continue: a lower number takes effect as they end.  The setting applies until the worker ends.
    ``target``, ``worker``, transaction, return value and errors as for :func:`drain_workers`.
    """
    given = None if number is None else at_once("number", number)
    return _tell(session, target, worker, {"concurrency": given})


def check_registered(target: Target) -> None:
    """Raise :class:`.ConfigurationError` if the application of ``target`` has no model for workers."""
    _registry_of(specs_of(target)[0])


class Released(int):
    """The result of :func:`release_workers`: the number of tasks that it released."""

    locked: int
    """How many tasks it left as they are because other transactions have locked their rows."""

    def __new__(cls, number: int, locked: int = 0) -> Self:
        released = super().__new__(cls, number)
        released.locked = locked
        return released


def release_workers(session: AnySession, target: Target, worker: str, *, force: bool = False) -> Released:
    """Release the tasks that silent workers hold, as the end of their leases does: other workers may claim them at
    once.  For hosts that have died: otherwise their tasks wait until their leases end.

    ``target`` as for :func:`workers`: a model releases only tasks of its queue.  ``worker``: the ``id``, name or host
    of the workers.  The attempts do not count, but the tasks count as suspects, see ``max_crashes``.  If such a worker
    still runs, for example because it is cut off from the database, it can no longer settle these tasks: what its
    handlers write in their transactions is rolled back, but what they do elsewhere may then happen twice.  Hence
    workers that are not silent are left alone, unless ``force``.

    Runs in the session's transaction.  Tasks with locked rows are not waited for.  Raises :class:`.ArgumentError` if no
    such worker is registered, or none of them is silent, and otherwise the errors of :func:`drain_workers`.
    """
    specs = specs_of(target)
    _registry_of(specs[0])
    session = session_of(session)
    adapter = open_(session, specs[0], Access.SKIP)
    for each in specs:
        refuse_if_restricted(session, adapter, each, "release_workers()")
    named = [each for each in workers(session, target, limit=None) if worker in (each.id, each.name, each.host)]
    if not named:
        raise ArgumentError(f"no worker of these queues is registered as {worker!r}: give the name, id or host of one")
    silent = named if force else [each for each in named if each.state is WorkerState.SILENT]
    if not silent:
        heard = min(named, key=lambda each: each.unheard)
        raise ArgumentError(
            f"{heard.name} is {heard.state}, and reported {spoken(heard.unheard)} ago: its handlers may be running."
            " Stop it first, or use force: they will run on, but cannot settle their tasks"
        )
    counts = [
        release_held(session, spec, each.claimer, BY_HAND) for each in silent for spec in specs if spec.holds_tasks
    ]
    return Released(sum(counts), sum(each.locked for each in counts))


BY_HAND = "crashed: its worker was silent, and the task was released"
"""Errors of attempts in the history."""
ENDED = "crashed: the process of its worker has ended"


def release_held(session: Session, spec: QueueSpec, claimer: int, reason: str) -> Released:
    """Release the tasks of one queue that a worker holds, for a ``reason`` that the history shows."""
    claims = [claim for claim, *_ in held_by(session, spec, WorkerTokens(claimer))]
    left = settle_some(session, claims, released_from_worker(reason), waits=False)
    return Released(len(claims) - len(left), len(still_held(session, left)))


def _tell(session: AnySession, target: Target, worker: str | None, values: Mapping[str, Any]) -> int:
    spec = specs_of(target)[0]
    table = _registry_of(spec)
    session = session_of(session)
    adapter = open_(session, spec, Access.SKIP)
    for each in specs_of(target):
        refuse_if_restricted(session, adapter, each, "a command to workers")
    found = workers(session, target, limit=None)
    heard = [each for each in found if each.state is not WorkerState.SILENT]
    told = [each.id for each in heard if worker in (None, each.id, each.name)]
    statements = [update(table).where(table.c.id == key).values(**values) for key in sorted(told)]
    changed = sum(adapter.rows.count(session, spec, each) for each in statements)
    if changed:
        announce(session, spec, table.fullname)
    return changed


def _registry_of(spec: QueueSpec) -> Table:
    return needed_companion(WorkerMixin, spec, f"the workers of {spec.entity.__name__} are not registered")


def _infos(session: Session, spec: QueueSpec, asked: Select[Any]) -> list[WorkerInfo]:
    rows: Any = open_(session, spec).rows.execute(session, spec, asked).mappings()
    return [_info(row) for row in rows]


def _info(row: Mapping[str, Any]) -> WorkerInfo:
    same = ("id", "name", "host", "process", "birth", "claimer", "started_at", "seen_at", "stalled_at", "version")
    unheard = max(timedelta(0), row["now"] - row["seen_at"])
    return WorkerInfo(
        **{key: row[key] for key in (*same, "last_claim_at", "memory", "concurrency")},
        state=worker_state(unheard, is_stalled=row["stalled_at"] is not None),
        unheard=unheard,
        handlers=handlers_of(row["handlers"]),
        command=Command(row["command"]) if row["command"] in tuple(Command) else None,
    )


def handlers_of(stored: object) -> tuple[HandlerInfo, ...]:
    """Return handlers as values, from JSON, which another release may have written: of a handler, only the queue must
    be known."""
    known = [each for each in stored if isinstance(each, Mapping) and "queue" in each] if _is_list(stored) else []
    return tuple(
        HandlerInfo(
            queue=str(each["queue"]),
            functions=tuple(map(str, names)) if _is_list(names := each.get("functions")) else None,
            whole=bool(each.get("whole", False)),
            slots=_number(each.get("slots")),
            busy=_number(each.get("busy")),
        )
        for each in known
    )


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
