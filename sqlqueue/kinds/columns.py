"""Kinds that add columns alone: functions, results, topics, traces, unique keys."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import String, case, null
from sqlalchemy.orm import Mapped

from .._support import checks
from .._support.tracing import LONGEST, present_trace
from ..dialects import json_type, key_type
from ..lifecycle.kind import Kind, KindIndex, Partition
from ..model.declaration import LONGEST_KEY, QueueMixin, check_stored_json, optional
from ..queue.options import QueueOptions
from ..queue.spec import Criterion, QueueSpec
from ..sql import Assignment

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


# -- queues that store the results of their tasks ---------------------------------------------------------------------


class Results(Kind):
    """Clears the result of an earlier run when a task is reactivated."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "result" in roles and options.on_complete == "delete":
            return "on_complete='delete' would delete the result with the task: choose on_complete='keep'"
        return None

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        return [(spec["result"], case((running, spec["result"]), else_=null()))]

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec["result"], null())]


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
