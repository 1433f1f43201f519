"""Queues whose unfinished tasks have unique keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import case, func, null
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.kind import Kind, KindIndex
from ..model.columns import LONGEST_KEY, optional
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, QueueSpec
from ..sql.changes import Assignment, UniqueBy


class Unique(Kind):
    """Keeps the keys of unfinished tasks unique, and frees the key of a task that becomes final."""

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("unique", [spec["unique_key"]], spec["unique_key"].is_not(None), unique=True)

    def unique_by(self, spec: QueueSpec) -> UniqueBy | None:
        return UniqueBy((spec["unique_key"],), spec["unique_key"].is_not(None))

    def ended(self, spec: QueueSpec, final: Criterion | None) -> list[Assignment]:
        """Clear the key of final tasks and store it as the former key."""
        key, former = spec["unique_key"], spec["former_key"]
        kept = func.coalesce(key, former)
        if final is None:
            return [(former, kept), (key, null())]
        return [(former, case((final, kept), else_=former)), (key, case((final, null()), else_=key))]

    def revived(self, spec: QueueSpec) -> list[Assignment]:
        key, former = spec["unique_key"], spec["former_key"]
        return [(key, func.coalesce(key, former)), (former, null())]


UNIQUE = Unique(
    columns={
        "unique_key": lambda _: optional(key_type(LONGEST_KEY)),
        "former_key": lambda _: optional(key_type(LONGEST_KEY)),
    },
    checks={"unique_key": checks.key},
    untold=("former_key",),
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
