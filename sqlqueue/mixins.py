"""The mixins, which make a model a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import MetaData, event
from sqlalchemy.orm import Mapped

from . import definition
from .options import QueueOptions
from .spec import QUEUE_ROLES, QueueSpec


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
        finished_at: Mapped[datetime | None]
        error: Mapped[str | None]
        """The text of the last failure."""
        created_at: Mapped[datetime]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if definition.declares_columns(cls):
            definition.declare(cls)
        super().__init_subclass__(**kwargs)
        mapper = cls.__dict__.get("__mapper__")
        if mapper is not None and "__queue_spec__" not in cls.__dict__:
            definition.make_spec(mapper, cls)


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


event.listen(QueueMixin, "after_mapper_constructed", definition.make_spec, propagate=True)
event.listen(QueueMixin, "before_insert", definition.schedule, propagate=True)
