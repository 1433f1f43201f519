"""Queues whose unfinished tasks are told apart by a key."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import case, func, null
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.kind import Kind, KindIndex
from ..model.columns import LONGEST_KEY, optional
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, QueueSpec
from ..sql.selection import Assignment, UniqueBy


class Unique(Kind):
    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("unique", [spec["unique_key"]], spec["unique_key"].is_not(None), unique=True)

    def unique_by(self, spec: QueueSpec) -> UniqueBy | None:
        return _by_unique_key(spec)

    def ended(self, spec: QueueSpec, final: Criterion | None) -> list[Assignment]:
        """Tasks free their keys and remember them."""
        key, former = spec["unique_key"], spec["former_key"]
        kept = func.coalesce(key, former)
        if final is None:
            return [(former, kept), (key, null())]
        return [(former, case((final, kept), else_=former)), (key, case((final, null()), else_=key))]

    def revived(self, spec: QueueSpec) -> list[Assignment]:
        key, former = spec["unique_key"], spec["former_key"]
        return [(key, func.coalesce(key, former)), (former, null())]


@cache
def _by_unique_key(spec: QueueSpec) -> UniqueBy:
    return UniqueBy((spec["unique_key"],), spec["unique_key"].is_not(None))


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

    A unique index sees to that, whoever inserts: :class:`.DuplicateTaskError`, unless ``enqueue(on_conflict=...)`` says
    what is to become of the task that is there.  A task that becomes final gives its key up, and keeps it as
    ``former_key``; ``retry`` gives it back.
    """

    __queue_kind__: ClassVar[Kind | None] = UNIQUE

    if TYPE_CHECKING:
        unique_key: Mapped[str | None]
        """``None``: nothing to be told apart."""
        former_key: Mapped[str | None]
        """The ``unique_key`` of a final task."""
