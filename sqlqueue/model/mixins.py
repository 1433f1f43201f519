"""The mixin that makes a model a queue, which those of all kinds derive from."""

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
    """Makes a model a queue.  Its rows are the tasks.

    Each class that maps a table gets the columns below and two indexes; :class:`.QueueOptions` in ``__queue__`` says
    the rest.  What cannot work is a :class:`.ConfigurationError` when the class is made.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions()
    __queue_kind__: ClassVar[Kind | None] = None
    """What a mixin adds to the queue; in the namespace of this package's own mixins alone."""
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


event.listen(QueueMixin, "after_mapper_constructed", declaration.make_spec, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.check_key, propagate=True)
event.listen(QueueMixin, "before_insert", declaration.schedule, propagate=True)
event.listen(QueueMixin, "before_update", declaration.check, propagate=True)


T = TypeVar("T", bound=QueueMixin)
