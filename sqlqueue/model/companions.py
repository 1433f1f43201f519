"""The tables beside the queues: pauses, the history, latches, the registry of workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import BigInteger, Identity, Index, Integer, MetaData, SmallInteger, String, Table, event, text
from sqlalchemy.orm import Mapped, Mapper
from sqlalchemy.sql.elements import conv

from .._support.errors import ConfigurationError
from .._support.texts import LONGEST_GROUP
from ..dialects import error_type, json_type, key_type, long_text_type, serial_type, text_type, timestamp_type
from ..queue.options import HistoryOptions, LatchOptions
from ..queue.spec import QueueSpec, index_name
from ..sql import utcdefault, utcinsertion
from .declaration import LONGEST_KEY, LONGEST_LATCH, LONGEST_NAME, place

# -- models whose one table serves all queues of a `MetaData`: pauses, registered workers, and the history ------------


Options = TypeVar("Options", HistoryOptions, LatchOptions)


class CompanionMixin:
    """The base of mixins for such models: declares their columns."""

    __companion_options__: ClassVar[tuple[str, type[Any]]] = ("", NoneType)
    """The attribute with the options of the model, and their type."""
    __companion_indexes__: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The columns of the indexes of the table."""

    @staticmethod
    def __companion_columns__() -> Mapping[str, dict[str, Any]]:
        """Return the arguments of each column by its name."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        is_mixin = CompanionMixin in cls.__bases__ or cls.__dict__.get("__abstract__")
        if not is_mixin and not any("__mapper__" in base.__dict__ for base in cls.__mro__[1:]):
            for name, arguments in cls.__companion_columns__().items():
                place(cls, name, arguments)
        super().__init_subclass__(**kwargs)


def companion_table(mixin: type[CompanionMixin], metadata: MetaData) -> Table | None:
    """Return the table of the model in ``metadata`` that derives from ``mixin``, or ``None``."""
    found: WithOptions[Any] | None = metadata.info.get(mixin)
    return None if found is None else found.table


def needed_companion(mixin: type[CompanionMixin], spec: QueueSpec, problem: str) -> Table:
    """Return the table of the model that derives from ``mixin``; raise :func:`missing_companion` if there is none."""
    table = companion_table(mixin, spec.table.metadata)
    if table is None:
        raise missing_companion(mixin, spec, problem)
    return table


def missing_companion(mixin: type[CompanionMixin], spec: QueueSpec, problem: str) -> ConfigurationError:
    """Return the error that no model derives from ``mixin``, with an example; ``problem``: what is impossible."""
    name = mixin.__name__
    kind = name.removesuffix("Mixin")
    return ConfigurationError(
        f"{problem}: there is no model derived from {name}. Add one, and migrate:\n\n"
        f"    from sqlqueue import {name}\n\n"
        f"    class Queue{kind}({name}, Base):\n"
        f'        __tablename__ = "queue_{kind.lower()}"\n',
        model=spec.entity,
    )


class WithOptions(NamedTuple, Generic[Options]):
    """The one table of such a model for the queues of a ``MetaData``, and the options of the model."""

    table: Table
    options: Options


@event.listens_for(CompanionMixin, "after_mapper_constructed", propagate=True)
def _register(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Add the indexes of such a model to its table, and register it in its ``MetaData``."""
    table, (name, kind) = mapper.local_table, cls.__companion_options__
    if not isinstance(table, Table) or mapper.inherits is not None:
        return  # a subclass without a table of its own
    mixin = next(base for base in cls.__mro__ if CompanionMixin in base.__bases__)
    before = table.metadata.info.get(mixin)
    options: Any = getattr(cls, name, None)
    if before is not None and before.table is not table:
        raise ConfigurationError(
            f"all queues share one table, not {before.table} and {table}: derive only one model from {mixin.__name__}"
        )
    if not isinstance(options, kind):
        raise ConfigurationError(f"{cls.__name__}.{name} must be a {kind.__name__}, not {options!r}")
    for index, columns in cls.__companion_indexes__.items():
        Index(conv(index_name(table.name, index)), *(table.c[column] for column in columns))
    table.metadata.info[mixin] = WithOptions(table, options)


# -- the model of the table that records which queues are paused ------------------------------------------------------

LONGEST_PLACE = 386
"""The maximum length of what is paused: a schema, a table, and a topic or a key, with their separators."""


def _pause_columns() -> dict[str, dict[str, Any]]:
    required = {"nullable": False}
    return {
        "queue": {"type_": key_type(LONGEST_PLACE), "primary_key": True},
        "paused_at": {"type_": timestamp_type(), **required},
        "paused_by": {"type_": text_type(LONGEST_NAME), **required},
        "reason": {"type_": error_type(), "nullable": True},
    }


class PauseMixin(CompanionMixin):
    """A mixin for the model that records which queues are paused; :func:`.pause` and :func:`.resume` write its rows.

    >>> class QueuePause(PauseMixin, Base):
    ...     __tablename__ = "queue_pause"

    Declare one for all queues of the same ``MetaData``, in their database.  Workers find it automatically.
    """

    __companion_columns__ = staticmethod(_pause_columns)

    if TYPE_CHECKING:
        queue: Mapped[str]
        """The queue's table, followed by ``:`` and a topic or by ``=`` and a key if only that is paused."""
        paused_at: Mapped[datetime]
        """The time of the pause."""
        paused_by: Mapped[str]
        """The name of the process, or the one given to :func:`.pause`."""
        reason: Mapped[str | None]
        """The reason given to :func:`.pause`."""


def pause_table(metadata: MetaData) -> Table | None:
    """Return the table of paused queues in ``metadata``, or ``None``."""
    return companion_table(PauseMixin, metadata)


# -- the model that stores the finished attempts of all queues --------------------------------------------------------

_LONGEST_TABLE = 257
"""The length of a schema, a dot and a table."""


def _history_columns() -> dict[str, dict[str, Any]]:
    required = {"nullable": False}
    return {
        "id": {"type_": serial_type(), "items": (Identity(),), "primary_key": True},
        "queue": {"type_": key_type(_LONGEST_TABLE), **required},
        "task": {"type_": key_type(LONGEST_KEY), **required},
        "attempt": {"type_": Integer(), **required},
        "claimed_by": {"type_": text_type(LONGEST_NAME), "nullable": True},
        "started_at": {"type_": timestamp_type(), "nullable": True},
        "finished_at": {"type_": timestamp_type(), "server_default": utcdefault(), **required},
        "outcome": {"type_": String(16), **required},
        "error": {"type_": error_type(), "nullable": True},
        "error_group": {"type_": text_type(LONGEST_GROUP), "nullable": True},
        "traceback": {"type_": long_text_type(), "nullable": True},
    }


class HistoryMixin(CompanionMixin):
    """A mixin for the model that stores the history of all queues of the same ``MetaData``: one row for each finished
    attempt.

    >>> class QueueHistory(HistoryMixin, Base):
    ...     __tablename__ = "queue_history"
    ...     __history__ = HistoryOptions(retention=timedelta(days=30))

    Each settlement writes its rows in the same transaction, with one more statement for each batch. If a claimer
    crashes, the attempt is recorded when its task is taken over. :func:`.history` reads the rows.
    """

    __companion_columns__ = staticmethod(_history_columns)
    __companion_options__ = ("__history__", HistoryOptions)
    __companion_indexes__: ClassVar = {"task": ("queue", "task", "id"), "outcome": ("queue", "outcome", "finished_at")}
    __history__: ClassVar[HistoryOptions] = HistoryOptions()

    if TYPE_CHECKING:
        id: Mapped[int]
        queue: Mapped[str]
        """The queue's table."""
        task: Mapped[str]
        """The primary key of the task as text."""
        attempt: Mapped[int]
        claimed_by: Mapped[str | None]
        """The name of the claimer."""
        started_at: Mapped[datetime | None]
        """When it was claimed; ``None`` if only a lock held the row, which stores no time."""
        finished_at: Mapped[datetime]
        outcome: Mapped[str]
        """The :class:`.AttemptOutcome`."""
        error: Mapped[str | None]
        error_group: Mapped[str | None]
        """The fingerprint of ``error``, see :class:`.ErrorGroup`."""
        traceback: Mapped[str | None]
        """The application's frames, without local variables."""


History: TypeAlias = WithOptions[HistoryOptions]


def history_of(metadata: MetaData) -> History | None:
    """Return the history of the queues of ``metadata``, if the application has one."""
    found: History | None = metadata.info.get(HistoryMixin)
    return found


# -- the model of latches, which open when the tasks that report to them have ended ------------------------------------


def _latch_columns() -> dict[str, dict[str, Any]]:
    optional, required = {"nullable": True}, {"nullable": False}
    moment = {"type_": timestamp_type(), "server_default": utcdefault(), "insert_default": utcinsertion(), **required}
    return {
        "id": {"type_": key_type(LONGEST_LATCH), "primary_key": True},
        "reports_to": {"type_": key_type(LONGEST_LATCH), **optional},
        "waits_for": {"type_": key_type(LONGEST_LATCH), **optional},
        "members": {"type_": json_type(), **required},
        "waiters": {"type_": json_type(), **required},
        "sealed": {"type_": SmallInteger(), **required},
        "opened_at": {"type_": timestamp_type(), **optional},
        "broken_at": {"type_": timestamp_type(), **optional},
        **{name: {"type_": Integer(), **optional} for name in OUTCOMES},
        "payload": {"type_": json_type(), **optional},
        "changes": {"type_": Integer(), "server_default": text("0"), **required},
        "created_at": moment,
    }


OUTCOMES = ("completed", "discarded", "cancelled", "skipped")
"""The ends of the members of a latch."""


class LatchMixin(CompanionMixin):
    """A mixin for the model of latches, on which batches and workflows of all queues of the same ``MetaData`` rest.

    >>> class QueueLatch(LatchMixin, Base):
    ...     __tablename__ = "queue_latch"
    ...     __latches__ = LatchOptions(retention=timedelta(days=30))

    Declare one for all queues with :class:`.FlowMixin`, in their database.  A latch is closed while a task that reports
    to it is unfinished; nobody counts: workers look at it after their commits.  See :doc:`/how-to/batches`.
    """

    __companion_columns__ = staticmethod(_latch_columns)
    __companion_options__ = ("__latches__", LatchOptions)
    __companion_indexes__: ClassVar = {
        "reports": ("reports_to", "opened_at"),
        "waits": ("waits_for",),
        "opened": ("opened_at",),
    }
    __latches__: ClassVar[LatchOptions] = LatchOptions()

    if TYPE_CHECKING:
        id: Mapped[str]
        """The key of a batch, or of one of its parts: ``<key>/<part>``."""
        reports_to: Mapped[str | None]
        """The latch of which it is a member."""
        waits_for: Mapped[str | None]
        """The latch with which it opens, if it stands for another one."""
        members: Mapped[list[str]]
        """The tables with tasks that report to it; ``*`` for latches."""
        waiters: Mapped[list[str]]
        """The tables with tasks that wait for it; ``*`` for latches."""
        sealed: Mapped[int]
        """1 if it opens when its members have ended, 2 if not before it is sealed, 0 if somebody opens it."""
        opened_at: Mapped[datetime | None]
        broken_at: Mapped[datetime | None]
        """When its first member was seen to have failed."""
        completed: Mapped[int | None]
        """How many members had this end when it opened; ``None`` before."""
        discarded: Mapped[int | None]
        cancelled: Mapped[int | None]
        skipped: Mapped[int | None]
        """How many were not needed: they wait for a failure, and there was none."""
        payload: Mapped[Any]
        """What the event was opened with."""
        changes: Mapped[int]
        """Written with each change of its members: other servers of a cluster do not see the lock, and older snapshots
        not what it has protected, but two writes conflict."""
        created_at: Mapped[datetime]


LatchTable: TypeAlias = WithOptions[LatchOptions]


def latches_in(metadata: MetaData) -> LatchTable | None:
    """Return the latches of the queues of ``metadata``, if the application has a model for them."""
    found: LatchTable | None = metadata.info.get(LatchMixin)
    return found


def latches_of(spec: QueueSpec) -> LatchTable | None:
    """Return the latches to which the tasks of a queue can report, if they can."""
    return latches_in(spec.table.metadata) if spec.has_latches else None


# -- the model in which running workers are registered ----------------------------------------------------------------

_LONGEST_ID = 32
_LONGEST_COMMAND = 16


_LONGEST_BIRTH = 64
"""The maximum length of the text that tells a process from all others."""
EVERY = timedelta(seconds=10)
"""The time between two reports of a worker."""
LIVE = timedelta(seconds=35)
"""The age of the last report from which on a worker is silent: three reports may be missed."""


class WorkerState(StrEnum):
    """The state of a worker, by one word everywhere."""

    LIVE = "live"
    """It works."""
    STALLED = "stalled"
    """Its event loop stands still: it claims nothing, but extends the leases of its tasks."""
    SILENT = "silent"
    """It has not reported for 35 seconds: it was killed, or it cannot reach the database."""


def worker_state(unheard: timedelta, *, is_stalled: bool) -> WorkerState:
    """Return the state of a worker whose last report is ``unheard`` old, according to which it was stalled or not."""
    if unheard > LIVE:
        return WorkerState.SILENT
    return WorkerState.STALLED if is_stalled else WorkerState.LIVE


def _worker_columns() -> dict[str, dict[str, Any]]:
    required, optional = {"nullable": False}, {"nullable": True}
    return {
        "id": {"type_": key_type(_LONGEST_ID), "primary_key": True},
        "name": {"type_": text_type(LONGEST_NAME), **required},
        "host": {"type_": text_type(LONGEST_NAME), **required},
        "process": {"type_": Integer(), **required},
        "birth": {"type_": String(_LONGEST_BIRTH), **optional},
        "claimer": {"type_": Integer(), **required},
        "started_at": {"type_": timestamp_type(), **required},
        "seen_at": {"type_": timestamp_type(), **required},
        "stalled_at": {"type_": timestamp_type(), **optional},
        "version": {"type_": text_type(LONGEST_NAME), **optional},
        "handlers": {"type_": json_type(), **required},
        "last_claim_at": {"type_": timestamp_type(), **optional},
        "memory": {"type_": BigInteger(), **optional},
        "command": {"type_": String(_LONGEST_COMMAND), **optional},
        "concurrency": {"type_": Integer(), **optional},
    }


class WorkerMixin(CompanionMixin):
    """A mixin for the model that registers running workers; :func:`.workers` reads its rows.

    >>> class QueueWorker(WorkerMixin, Base):
    ...     __tablename__ = "queue_worker"

    Declare one for all queues of the same ``MetaData``, in their database. Workers find it automatically. Each writes
    its row every ten seconds, and reads from it the commands that :func:`.drain_workers`, :func:`.stop_workers` and
    :func:`.set_concurrency` write.
    """

    __companion_columns__ = staticmethod(_worker_columns)

    if TYPE_CHECKING:
        id: Mapped[str]
        """A random id for one run of a worker; a restarted worker gets a new row."""
        name: Mapped[str]
        """The worker's name, as stored in ``claimed_by`` of its tasks."""
        host: Mapped[str]
        process: Mapped[int]
        birth: Mapped[str | None]
        """Tells the process from all others of its machine, past ones included; ``None`` where the system cannot."""
        claimer: Mapped[int]
        """The number that distinguishes its claims from those of all other workers."""
        started_at: Mapped[datetime]
        seen_at: Mapped[datetime]
        """When the worker last wrote the row, by the database's clock."""
        stalled_at: Mapped[datetime | None]
        """Since when its event loop has been standing still, if it does."""
        version: Mapped[str | None]
        """The version of the application, as given to the worker."""
        handlers: Mapped[list[dict[str, Any]]]
        """The worker's handlers, one object for each, see :class:`.HandlerInfo`."""
        last_claim_at: Mapped[datetime | None]
        memory: Mapped[int | None]
        """The resident memory of the process in bytes."""
        command: Mapped[str | None]
        """``drain`` or ``stop``."""
        concurrency: Mapped[int | None]
        """How many calls each handler runs at a time; ``None``: the number with which it was registered."""


def worker_table(metadata: MetaData) -> Table | None:
    """Return the table in which the workers of the queues of ``metadata`` are registered, if there is one."""
    return companion_table(WorkerMixin, metadata)
