"""The mixins that turn a model into a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy import MetaData, event
from sqlalchemy.orm import Mapped
from sqlalchemy.sql.elements import SQLCoreOperations

from ..queue.options import QueueOptions
from ..queue.retries import ExponentialBackoff
from ..queue.schedules import Schedule
from ..queue.spec import QUEUE_ROLES, QueueSpec
from . import declaration


class QueueMixin:
    """A mixin that turns a model into a queue, whose rows are the tasks.

    Each class that maps a table gets the columns below and two indexes; ``__queue__`` takes :class:`.QueueOptions`.
    The class definition raises :class:`.ConfigurationError` for a model that cannot be a queue.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions()
    __queue_roles__: ClassVar[tuple[str, ...]] = QUEUE_ROLES
    __queue_spec__: ClassVar[QueueSpec]

    if TYPE_CHECKING:
        status: Mapped[str]
        """The task's :class:`.Status`."""
        priority: Mapped[int]
        """The priority; smaller numbers come first."""
        available_at: Mapped[datetime]
        """The time from which the row may be claimed (again); for final rows, the time when they became final."""
        attempt: Mapped[int]
        """How many times the row has been claimed.  Never decreases."""
        max_attempts: Mapped[int]
        """The value of ``attempt`` at which the row is no longer claimed."""
        claimed_by: Mapped[str | None]
        """The name of the last claimer."""
        claimed_at: Mapped[datetime | None]
        """The time of the last claim."""
        claim_token: Mapped[int]
        """The random number of the last claim with a lease, by which settling recognizes the claim."""
        finished_at: Mapped[datetime | None]
        """The time when the row became final; ``None`` in final rows from before the table became a queue."""
        error: Mapped[str | None]
        """The text of the last failure."""
        created_at: Mapped[datetime]
        """The time of the insert."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if declaration.declares_columns(cls):
            declaration.declare(cls)
        super().__init_subclass__(**kwargs)
        mapper = cls.__dict__.get("__mapper__")
        if mapper is not None and "__queue_spec__" not in cls.__dict__:
            declaration.make_spec(mapper, cls)


class TopicMixin(QueueMixin):
    """A queue divided by ``topic``; claims with ``Task.topic == "..."`` have an index of their own.

    The default topic is ``"default"``.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "topic")

    if TYPE_CHECKING:
        topic: Mapped[str]
        """The topic of the task."""


class JobMixin(QueueMixin):
    """A queue of function calls: each row stores a function's name and arguments, see :meth:`.Worker.task`."""

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "task", "arguments")

    if TYPE_CHECKING:
        task: Mapped[str]
        """The name of the function."""
        arguments: Mapped[dict[str, Any] | None]
        """The function's arguments by name, as JSON; missing arguments get their defaults at the call."""


class ResultMixin(QueueMixin):
    """A queue that stores the results of its tasks: of ``complete(task, result=...)``, or a handler's return value."""

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "result")

    if TYPE_CHECKING:
        result: Mapped[Any]
        """The result as JSON; ``None`` until the task is completed."""


class UniqueMixin(QueueMixin):
    """A queue in which no two unfinished tasks have the same ``unique_key``.

    A unique index enforces this for all programs that insert.  ``enqueue`` raises :class:`.DuplicateTaskError`, unless
    ``on_conflict`` says what to do with the existing task.  A task that becomes final gives up its key, which moves to
    ``former_key``; ``retry`` restores it.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "unique_key", "former_key")

    if TYPE_CHECKING:
        unique_key: Mapped[str | None]
        """The key; ``None``: not restricted."""
        former_key: Mapped[str | None]
        """The ``unique_key`` that a final task had."""


class StageMixin(QueueMixin):
    """A queue whose tasks go through the ``stages`` of its :class:`.QueueOptions` in order.

    ``complete`` moves a task to the next stage, where it is available at once with all its attempts; in the last stage
    it completes the task.  Claims with ``Task.stage == "..."`` have an index of their own.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "stage", "attempts_before")

    if TYPE_CHECKING:
        stage: Mapped[str]
        """The current stage."""
        attempts_before: Mapped[int]
        """How many attempts the previous stages took."""


if TYPE_CHECKING:

    class _MappedSchedule(Mapped[str | None]):
        """An attribute that is read as text, and can be set to a schedule as well."""

        def __set__(self, instance: Any, value: Schedule | str | SQLCoreOperations[str | None] | None) -> None: ...


class RecurringMixin(QueueMixin):
    """A queue whose tasks run repeatedly, each by its own ``schedule``.

    When a run is completed, or its last attempt has failed, the next run is scheduled in the same statement.
    ``cancel``, ``discard`` and :func:`.unschedule` end a task.  A task without a schedule is an ordinary one.
    Applications declare their recurring tasks by :func:`.declare_schedules`.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "schedule", "drift", "scheduled_for", "attempts_before")

    if TYPE_CHECKING:
        schedule: _MappedSchedule
        """The text of an :class:`.Every` or a :class:`.Cron`, given as either; see :func:`.reschedule` for changes."""
        drift: Mapped[bool | None]
        """Whether intervals count from the end of a run instead of its planned time."""
        scheduled_for: Mapped[datetime | None]
        """The planned time of the claimed run; retries do not change it."""
        attempts_before: Mapped[int]
        """How many attempts the previous runs took."""


class LimitMixin(QueueMixin):
    """A queue that limits how many tasks with the same ``limit_key`` run at once, across all workers.

    The limit is the number of the key's slots in the model that ``QueueOptions(slots=...)`` names.  A key at its limit
    does not hold up tasks of other keys.  A claim may hold a slot that it could not use until its transaction ends:
    commit claims soon.

    Tasks are claimed in the queue's order, except while other claims run: instead of a task that another claim has
    locked, the next task of the same key is taken, even if a task of another key comes before it.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "limit_key")

    if TYPE_CHECKING:
        limit_key: Mapped[str | None]
        """The key; ``None``: not limited."""


class SlotMixin(QueueMixin):
    """The slots of a :class:`.LimitMixin`: each is held by one running task, with the same lease.

    The mixin declares the primary key.  Rows are created when they are needed, see :func:`.set_limit`.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(max_attempts=2**31 - 1, notify=False)
    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "slot_key", "slot_number")

    if TYPE_CHECKING:
        slot_key: Mapped[str]
        """The ``limit_key`` of the tasks that may take the slot."""
        slot_number: Mapped[int]
        """The number of the slot; number 0 represents the key itself, and is never held."""


class OutboxMixin(QueueMixin):
    """A transactional outbox: each row is a message, stored in the transaction of the data that it is about.

    A :class:`.Relay` publishes messages with the same ``message_key`` in the order of their primary keys.  This is the
    order of their transactions if transactions about the same thing wait for each other, for example by updating its
    row.

    A message is retried until it is published, and then deleted.  Base the model's own ``QueueOptions`` on these:
    ``__queue__ = replace(OutboxMixin.__queue__, on_complete="keep")``.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(
        lease=timedelta(seconds=30),
        max_attempts=1_000_000,
        retry=ExponentialBackoff(timedelta(seconds=1), factor=2, cap=timedelta(minutes=1)),
        on_complete="delete",
    )
    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "message_key", "destination", "payload", "headers")

    if TYPE_CHECKING:
        message_key: Mapped[str | None]
        """The key whose messages stay in order, such as that of the row they are about; ``None``: no order."""
        destination: Mapped[str | None]
        """The topic, exchange or routing key to publish to, for the publisher to read."""
        payload: Mapped[Any]
        """The payload, as JSON."""
        headers: Mapped[dict[str, Any] | None]
        """Headers sent with the payload, as JSON."""


def queues(metadata: MetaData) -> list[QueueSpec]:
    """Return the queues whose tables are in ``metadata``, sorted by table; those of subclasses follow their base's."""
    found = (cls.__dict__.get("__queue_spec__") for cls in subclasses(QueueMixin))
    specs = [spec for spec in found if spec is not None and spec.table.metadata is metadata]
    return sorted(specs, key=lambda spec: spec.table.key)


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Return all direct and indirect subclasses, each once, bases first."""
    level = cls.__subclasses__()
    seen: dict[type[Any], None] = {}
    while level:
        seen.update(dict.fromkeys(level))
        level = [each for base in level for each in base.__subclasses__() if each not in seen]
    return iter(seen)


class TraceMixin(QueueMixin):
    """A queue whose tasks carry the trace of their enqueueing to their handlers (OpenTelemetry)."""

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "trace_context")

    if TYPE_CHECKING:
        trace_context: Mapped[str | None]
        """A W3C ``traceparent`` header."""


event.listen(QueueMixin, "after_mapper_constructed", declaration.make_spec, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check_key, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.schedule, propagate=True)
event.listen(QueueMixin, "before_update", declaration.check, propagate=True)


T = TypeVar("T", bound=QueueMixin)
