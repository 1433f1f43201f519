"""The mixins, which make a model a queue."""

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
    """Makes a model a queue.  Its rows are the tasks.

    Each class that maps a table gets the columns below and two indexes; :class:`.QueueOptions` in ``__queue__`` says
    the rest.  What cannot work is a :class:`.ConfigurationError` when the class is made.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions()
    __queue_roles__: ClassVar[tuple[str, ...]] = QUEUE_ROLES
    __queue_spec__: ClassVar[QueueSpec]

    if TYPE_CHECKING:
        status: Mapped[str]
        """A :class:`.Status`."""
        priority: Mapped[int]
        """Smaller first."""
        available_at: Mapped[datetime]
        """From when the row may be claimed (again); when final, since when."""
        attempt: Mapped[int]
        """How often the row has been claimed.  Only ever grows."""
        max_attempts: Mapped[int]
        """No claim once ``attempt`` has come to this."""
        claimed_by: Mapped[str | None]
        claimed_at: Mapped[datetime | None]
        claim_token: Mapped[int]
        """Of the last claim with a lease: a random number, by which settling knows whether a claim holds the row."""
        finished_at: Mapped[datetime | None]
        """When it became final; ``None`` in a final row if it was in the table before that became a queue."""
        error: Mapped[str | None]
        """The text of the last failure."""
        created_at: Mapped[datetime]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if declaration.declares_columns(cls):
            declaration.declare(cls)
        super().__init_subclass__(**kwargs)
        mapper = cls.__dict__.get("__mapper__")
        if mapper is not None and "__queue_spec__" not in cls.__dict__:
            declaration.make_spec(mapper, cls)


class TopicMixin(QueueMixin):
    """A queue divided by ``topic``; a claim with ``Task.topic == "..."`` has an index of its own.

    A row with nothing given is of the topic ``"default"``.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "topic")

    if TYPE_CHECKING:
        topic: Mapped[str]


class JobMixin(QueueMixin):
    """A queue of function calls: each row names a function and has its arguments, see :meth:`.Worker.task`."""

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "task", "arguments")

    if TYPE_CHECKING:
        task: Mapped[str]
        """The name of the function."""
        arguments: Mapped[dict[str, Any] | None]
        """Its arguments by name, as JSON; those that are left out have their defaults when it is called."""


class ResultMixin(QueueMixin):
    """A queue that keeps what its tasks come to: ``complete(task, result=...)``, or what a worker's handler returns."""

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "result")

    if TYPE_CHECKING:
        result: Mapped[Any]
        """JSON; ``None`` until completed."""


class UniqueMixin(QueueMixin):
    """A queue in which no two unfinished tasks have the same ``unique_key``.

    A unique index sees to that, whoever inserts: :class:`.DuplicateTaskError`, unless ``enqueue(on_conflict=...)`` says
    what is to become of the task that is there.  A task that becomes final gives its key up, and keeps it as
    ``former_key``; ``retry`` gives it back.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "unique_key", "former_key")

    if TYPE_CHECKING:
        unique_key: Mapped[str | None]
        """``None``: nothing to be told apart."""
        former_key: Mapped[str | None]
        """The ``unique_key`` of a final task."""


class StageMixin(QueueMixin):
    """A queue whose tasks go through the ``stages`` that :class:`.QueueOptions` names, from the first on.

    ``complete`` moves a task to the next stage, where it is available at once with all its attempts; the last stage
    completes it.  A claim with ``Task.stage == "..."`` has an index of its own.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "stage", "attempts_before")

    if TYPE_CHECKING:
        stage: Mapped[str]
        attempts_before: Mapped[int]
        """How many attempts the stages before took."""


if TYPE_CHECKING:

    class _MappedSchedule(Mapped[str | None]):
        """Reads as text, and takes a schedule as well."""

        def __set__(self, instance: Any, value: Schedule | str | SQLCoreOperations[str | None] | None) -> None: ...


class RecurringMixin(QueueMixin):
    """A queue whose tasks run again and again, each by its own ``schedule``.

    When a run is completed, or has failed in its last attempt, the next is scheduled in the same statement.  A task
    ends by ``cancel``, ``discard`` or :func:`.unschedule`.  One without a schedule is an ordinary task.  An application
    declares the tasks that are to exist by :func:`.declare_schedules`.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "schedule", "drift", "scheduled_for", "attempts_before")

    if TYPE_CHECKING:
        schedule: _MappedSchedule
        """The text of an :class:`.Every` or a :class:`.Cron`, given as either; see :func:`.reschedule` for changes."""
        drift: Mapped[bool | None]
        """An interval counts from the end of a run if true, from its planned time if not."""
        scheduled_for: Mapped[datetime | None]
        """For when the run that has been claimed was planned, however often it had to be tried."""
        attempts_before: Mapped[int]
        """How many attempts the runs before took."""


class LimitMixin(QueueMixin):
    """A queue of whose tasks with the same ``limit_key`` only so many run at once, over all workers.

    As many as there are slots for the key in the model that ``QueueOptions(slots=...)`` names.  A task of another key
    is never held up by a full one.  A claim may hold a slot that it could not use until its transaction ends: commit
    claims soon.

    Tasks are claimed in the order of the queue, but for what others are claiming at that moment: in the place of a task
    that they have locked, the next one of the same key is taken, even if a task of another key comes before that.
    """

    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "limit_key")

    if TYPE_CHECKING:
        limit_key: Mapped[str | None]
        """``None``: not limited."""


class SlotMixin(QueueMixin):
    """The slots of a :class:`.LimitMixin`: each is held by one running task, with the lease that the task has.

    The primary key is that of the mixin; the rows are made when they are needed, see :func:`.set_limit`.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(max_attempts=2**31 - 1, notify=False)
    __queue_roles__: ClassVar[tuple[str, ...]] = (*QUEUE_ROLES, "slot_key", "slot_number")

    if TYPE_CHECKING:
        slot_key: Mapped[str]
        """The ``limit_key`` of the tasks that may take it."""
        slot_number: Mapped[int]
        """Number 0 stands for the key alone, and is never held."""


class OutboxMixin(QueueMixin):
    """A transactional outbox: each row is a message, stored in the transaction of the data that it is about.

    A :class:`.Relay` publishes messages with the same ``message_key`` in the order of their primary keys, which is that
    of their transactions where those that write about the same thing wait for each other, as by updating its row.

    A message is tried again until it is published, and is deleted then; ``QueueOptions`` of the model's own should
    start from these: ``__queue__ = replace(OutboxMixin.__queue__, on_complete="keep")``.
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
        """What has to keep its order, such as the key of the row that the message is about; ``None``: no order."""
        destination: Mapped[str | None]
        """Where it is to go: a topic, an exchange, a routing key.  For the publisher to read."""
        payload: Mapped[Any]
        """JSON."""
        headers: Mapped[dict[str, Any] | None]
        """What goes along with the payload, as JSON."""


def queues(metadata: MetaData) -> list[QueueSpec]:
    """The queues whose tables are in ``metadata``, sorted by table; those of inheriting classes after their base's."""
    found = (cls.__dict__.get("__queue_spec__") for cls in subclasses(QueueMixin))
    specs = [spec for spec in found if spec is not None and spec.table.metadata is metadata]
    return sorted(specs, key=lambda spec: spec.table.key)


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """All of them, each once, bases first."""
    level = cls.__subclasses__()
    seen: dict[type[Any], None] = {}
    while level:
        seen.update(dict.fromkeys(level))
        level = [each for base in level for each in base.__subclasses__() if each not in seen]
    return iter(seen)


class TraceMixin(QueueMixin):
    """A queue whose tasks carry the trace in which they were enqueued to where they are handled (OpenTelemetry)."""

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
