"""Kinds that add columns, with little or nothing else: functions, results, topics, traces, unique keys, messages."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import String, case, null
from sqlalchemy.orm import Mapped

from .._support import checks
from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.tracing import LONGEST, present_trace
from ..dialects import json_type, key_type, lasting_keys, text_type, timestamp_type
from ..lifecycle.kind import Kind, KindIndex, Partition
from ..model.declaration import LONGEST_KEY, LONGEST_LATCH, QueueMixin, check_stored_json, optional
from ..queue.options import QueueOptions
from ..queue.retries import ExponentialBackoff
from ..queue.spec import Criterion, QueueSpec
from ..sql import Assignment, utcnow

# -- queues of function calls -----------------------------------------------------------------------------------------

LONGEST_TASK = 255
"""The maximum length of a function's name, in characters."""


JOBS = Kind(
    columns={
        "task": lambda _: {"type_": key_type(LONGEST_TASK), "nullable": False},
        "arguments": lambda _: optional(json_type()),
    },
    checks={"task": checks.key, "arguments": check_stored_json},
    untouched=("task", "arguments"),
    partition=Partition("task", width=3),
)


class JobMixin(QueueMixin):
    """A queue of function calls: each row stores a function's name and arguments, see :meth:`.Worker.task`.

    Claims by ``Job.task`` have their own index.
    """

    __queue_kind__: ClassVar[Kind | None] = JOBS

    if TYPE_CHECKING:
        task: Mapped[str]
        """The name of the function."""
        arguments: Mapped[dict[str, Any] | None]
        """The function's arguments by name, as JSON; missing arguments get their defaults when the function is
        called."""


# -- queues that store the results of their tasks, or their progress --------------------------------------------------


class Cleared(Kind):
    """Clears what an earlier run has left when a task is reactivated."""

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        return [(spec[role], case((running, spec[role]), else_=null())) for role in self.columns]

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec[role], null()) for role in self.columns]


class Results(Cleared):
    """Results, which are not deleted with their tasks."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "result" in roles and options.on_complete == "delete":
            return "on_complete='delete' would delete the result with the task: choose on_complete='keep'"
        return None


RESULTS = Results(
    columns={"result": lambda _: optional(json_type())},
    checks={"result": check_stored_json},
    written_by_queue=("result",),
)


class ResultMixin(QueueMixin):
    """A queue that stores the results of its tasks: those given to ``complete``, or the return values of handlers."""

    __queue_kind__: ClassVar[Kind | None] = RESULTS

    if TYPE_CHECKING:
        result: Mapped[Any]
        """The result as JSON; ``None`` until the task is completed."""


PROGRESS = Cleared(
    columns={"progress": lambda _: optional(json_type())},
    checks={"progress": check_stored_json},
    written_by_queue=("progress",),
)


class ProgressMixin(QueueMixin):
    """A queue whose handlers report how far they are, and short notes, while they run: :meth:`.Job.report` and
    :meth:`.Job.note` of the :func:`.current_job`."""

    __queue_kind__: ClassVar[Kind | None] = PROGRESS

    if TYPE_CHECKING:
        progress: Mapped[dict[str, Any] | None]
        """What the handler has reported, as JSON; ``None`` if nothing.

        - ``value``: from 0 to 1, or ``None``; ``text``: what was reported with it, or ``None``;
        - ``attempt``: the number of the attempt that has reported them;
        - ``notes``: the newest notes, each with ``at``, ``attempt`` and ``text``, the oldest first;
        - ``dropped``: how many older notes are not kept.
        """


# -- queues whose handlers run in durable steps -----------------------------------------------------------------------


class StepRecords(Cleared):
    """Keeps the steps that have run, through retries, until the task runs anew."""

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return []


STEPS = StepRecords(
    columns={"steps": lambda _: optional(json_type())},
    checks={"steps": check_stored_json},
    written_by_queue=("steps",),
)


class StepMixin(QueueMixin):
    """A queue whose handlers run in steps, each of which is recorded when it has run: see :class:`.Steps`."""

    __queue_kind__: ClassVar[Kind | None] = STEPS

    if TYPE_CHECKING:
        steps: Mapped[dict[str, Any] | None]
        """What the task keeps of its steps, as JSON; ``None`` before the first one.

        - ``steps``: by name, ``result`` of those that have run, and ``until`` of those that sleep;
        - ``id``: the beginning of its keys, or ``None``.
        """


# -- queues whose tasks expire ----------------------------------------------------------------------------------------


class Expiry(Cleared):
    """Lets tasks expire that are not started in time: claims cancel those that they find.  A task that is made
    available again does not expire, unless the insert that does so says when."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "expires_at" in roles and "schedule" in roles:
            return "a recurring task does not expire: QueueOptions(missed='skip') skips runs that start too late"
        if "expires_at" in roles and "message_key" in roles:
            return "messages of an outbox do not expire: each is published, in the order of its key"
        return None


EXPIRY = Expiry(columns={"expires_at": lambda _: optional(timestamp_type())}, untouched=("expires_at",))


class ExpiryMixin(QueueMixin):
    """A queue whose tasks may expire: one that no claim has taken by ``expires_at``, for the first time or again, is
    not run.  The claim that finds it cancels it, with the error ``"expired"``."""

    __queue_kind__: ClassVar[Kind | None] = EXPIRY

    if TYPE_CHECKING:
        expires_at: Mapped[datetime | None]
        """The time; ``None`` for a task that does not expire.  ``enqueue(expires=...)`` sets it."""


def expiry(spec: QueueSpec, expires: timedelta, delay: timedelta | None) -> dict[str, Any]:
    """Return the value of the attribute that makes a new task expire after ``expires``; it is due after ``delay``.

    Raises :class:`.ArgumentError` if tasks of this queue do not expire, or the task would before it is due.
    """
    if not spec.expires:
        raise ArgumentError(f"expires=: tasks of {spec.entity.__name__} do not expire: derive it from ExpiryMixin")
    if duration("expires", expires) <= (delay or timedelta(0)):
        raise ArgumentError(f"expires={expires!r}: with delay={delay!r}, it would expire before it is due")
    return {spec.attributes["expires_at"]: utcnow(expires)}


# -- queues divided by topic ------------------------------------------------------------------------------------------

LONGEST_TOPIC = 128


TOPICS = Kind(
    columns={
        "topic": lambda _: {"type_": key_type(LONGEST_TOPIC), "server_default": "default", "nullable": False},
    },
    checks={"topic": checks.key},
    untouched=("topic",),
    partition=Partition("topic", width=4),
)


class TopicMixin(QueueMixin):
    """A queue divided by ``topic``; claims with ``Task.topic == "..."`` have their own index.

    The default topic is ``"default"``.
    """

    __queue_kind__: ClassVar[Kind | None] = TOPICS

    if TYPE_CHECKING:
        topic: Mapped[str]
        """The topic of the task."""


# -- queues whose tasks carry a trace (OpenTelemetry) -----------------------------------------------------------------

TRACES = Kind(
    columns={"trace_context": lambda _: optional(String(LONGEST)) | {"insert_default": present_trace}},
    checks={"trace_context": checks.text},
    untouched=("trace_context",),
)


class TraceMixin(QueueMixin):
    """A queue whose tasks carry the trace of their enqueueing to their handlers (OpenTelemetry)."""

    __queue_kind__: ClassVar[Kind | None] = TRACES

    if TYPE_CHECKING:
        trace_context: Mapped[str | None]
        """A W3C ``traceparent`` header."""


# -- queues whose unfinished tasks have unique keys -------------------------------------------------------------------


class Unique(Kind):
    """Keeps the keys of unfinished tasks unique.  The transitions free the key of a task that becomes final."""

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("unique", [spec["unique_key"]], spec["unique_key"].is_not(None), unique=True)


UNIQUE = Unique(
    columns={
        "unique_key": lambda _: optional(key_type(LONGEST_KEY)),
        "former_key": lambda _: optional(key_type(LONGEST_KEY)),
    },
    checks={"unique_key": checks.key},
    written_by_queue=("former_key",),
)


class UniqueMixin(QueueMixin):
    """A queue in which no two unfinished tasks have the same ``unique_key``.

    A unique index enforces this for all programs that insert.  ``enqueue`` raises :class:`.DuplicateTaskError`, unless
    ``on_conflict`` says what to do with the existing task.  A task that becomes final gives up its key, which moves to
    ``former_key``; ``retry`` and ``rerun`` restore it.
    """

    __queue_kind__: ClassVar[Kind | None] = UNIQUE

    if TYPE_CHECKING:
        unique_key: Mapped[str | None]
        """The key; tasks without a key are not restricted."""
        former_key: Mapped[str | None]
        """The ``unique_key`` that a final task had."""


# -- queues whose tasks report their ends to latches, and wait for them ------------------------------------------------


class Flows(Kind):
    """What a task reports to and waits for.  Settling it writes to neither."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "reports_to" not in roles:
            return None
        if "schedule" in roles:
            return "a recurring task never ends, so nothing can wait for it: let each run enqueue a batch"
        if options.on_complete == "delete":
            return (
                "on_complete='delete' would delete the ends of tasks that others wait for: choose on_complete='keep',"
                " with retention=timedelta(0) to delete them soon after their batch"
            )
        return None

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("waits", [spec["waits_for"], spec["status"]], spec["waits_for"].is_not(None))
        # not by status: an unfinished row never moves within this index, so that no scan can miss it
        yield KindIndex("reports", [spec["reports_to"], spec["finished_at"]], spec["reports_to"].is_not(None))


FLOWS = Flows(
    columns={
        "waits_for": lambda _: optional(key_type(LONGEST_LATCH)),
        "waits_when": lambda _: optional(String(9)),
        "reports_to": lambda _: optional(key_type(LONGEST_LATCH)),
    },
    checks={"waits_for": checks.key, "reports_to": checks.key},
    untouched=("waits_for", "waits_when", "reports_to"),
    written_by_queue=("waits_for", "waits_when", "reports_to"),
)


class FlowMixin(QueueMixin):
    """A queue whose tasks can belong to batches and wait for other tasks, see :func:`.batch`.

    The application also needs one model with :class:`.LatchMixin`.
    """

    __queue_kind__: ClassVar[Kind | None] = FLOWS

    if TYPE_CHECKING:
        waits_for: Mapped[str | None]
        """The latch for which the task waits, or has waited."""
        waits_when: Mapped[str | None]
        """Which end of it starts the task: ``completed``, ``failed`` or ``final``; ``skipped`` if it was not needed."""
        reports_to: Mapped[str | None]
        """The latch that stays closed until the task is final; of the callback of a batch, ``<key>/then``."""


# -- transactional outboxes -------------------------------------------------------------------------------------------


class Outbox(Kind):
    """Never reuses the primary keys of messages; their keys keep their order."""

    def mapped(self, spec: QueueSpec) -> None:
        """Prevent the engine from reusing primary keys: consumers recognize a repeated message by its key."""
        if len(spec.primary_key) == 1:
            spec.table.dialect_kwargs.update(lasting_keys())


OUTBOX = Outbox(
    columns={
        "message_key": lambda _: optional(key_type(LONGEST_KEY)),
        "destination": lambda _: optional(text_type(LONGEST_KEY)),
        "payload": lambda _: optional(json_type()),
        "headers": lambda _: optional(json_type()),
    },
    checks={
        "message_key": checks.key,
        "destination": checks.text,
        "payload": check_stored_json,
        "headers": check_stored_json,
    },
    untouched=("message_key", "destination", "payload", "headers"),
)


class OutboxMixin(QueueMixin):
    """A transactional outbox: each row is a message, stored in the same transaction as the data that it is about.

    A :class:`.Relay` publishes messages with the same ``message_key`` in the order of their primary keys.  This is the
    order of their transactions if transactions that concern the same key wait for each other, for example because they
    update the same row.

    A message is retried until it is published, and then deleted.  Base the model's own ``QueueOptions`` on these:
    ``__queue__ = replace(OutboxMixin.__queue__, on_complete="keep")``.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(
        lease=timedelta(seconds=30),
        max_attempts=1_000_000,
        retry=ExponentialBackoff(timedelta(seconds=1), factor=2, cap=timedelta(minutes=1)),
        on_complete="delete",
    )
    __queue_kind__: ClassVar[Kind | None] = OUTBOX

    if TYPE_CHECKING:
        message_key: Mapped[str | None]
        """The key whose messages stay in order, such as the primary key of the row that they are about; ``None`` for no
        order."""
        destination: Mapped[str | None]
        """The topic, exchange or routing key to publish to, for the publisher to read."""
        payload: Mapped[Any]
        """The payload, as JSON."""
        headers: Mapped[dict[str, Any] | None]
        """Headers sent with the payload, as JSON."""
