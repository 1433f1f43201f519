"""The mixin that turns a model into a queue; the mixins of all kinds derive from it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sqlalchemy import MetaData, event
from sqlalchemy.orm import Mapped

from ..lifecycle.kind import Kind
from ..queue.options import QueueOptions
from ..queue.spec import QueueSpec
from . import declaration


class QueueMixin:
    """A mixin that turns a model into a queue, whose rows are the tasks.

    Each class that maps a table gets the columns below and two indexes; ``__queue__`` takes :class:`.QueueOptions`.
    The class definition raises :class:`.ConfigurationError` for a model that cannot be a queue.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions()
    """The model's options."""
    __queue_kind__: ClassVar[Kind | None] = None
    """What a mixin adds to the queue; defined only in the namespaces of this package's mixins."""
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
        """The random number of the last claim with a lease, by which settling recognizes the claim; negative if a
        worker made it."""
        crashes: Mapped[int]
        """How many worker processes have crashed while running the task; reset to 0 when an attempt ends."""
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


def queues(metadata: MetaData) -> list[QueueSpec]:
    """Return the queues whose tables are in ``metadata``, sorted by table; subclasses follow their base class."""
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


event.listen(QueueMixin, "after_mapper_constructed", declaration.make_spec, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check_key, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.schedule, propagate=True)
event.listen(QueueMixin, "before_update", declaration.check, propagate=True)


T = TypeVar("T", bound=QueueMixin)
