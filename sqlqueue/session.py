"""The session of an application that has queues: ``sessionmaker(engine, class_=QueueSession)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, overload

from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.sql.elements import SQLCoreOperations

from . import operations
from .model.mixins import QueueMixin, RecurringMixin, T
from .operations import pausing
from .operations.bulk import LAST, ErrorGroup
from .operations.claiming import Lease, OrderBy
from .operations.counting import CAP
from .operations.declared_schedules import DeclaredSchedules
from .operations.enqueueing import OnConflict
from .operations.limits import Limit
from .operations.pausing import Pause
from .operations.pruning import Pruned
from .operations.settling import Tasks
from .operations.statistics import QueueOverview, QueueStats, V
from .operations.timeline import Bucket
from .queue.schedules import Schedule
from .queue.spec import Where


class QueueSession(Session):
    """A :class:`sqlalchemy.orm.Session` with the operations of :mod:`sqlqueue` as methods.

    Each is the function of the same name, where it is documented.
    """

    def claim(
        self,
        entity: type[T],
        *where: Where,
        lease: Lease = "default",
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> T | None:
        """See :func:`sqlqueue.claim`."""
        return operations.claim(
            self, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
        )

    def claim_many(
        self,
        entity: type[T],
        *where: Where,
        limit: int,
        lease: Lease = "default",
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> Sequence[T]:
        """See :func:`sqlqueue.claim_many`."""
        return operations.claim_many(
            self, entity, *where, limit=limit, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
        )

    def claim_in_turns(
        self,
        entity: type[T],
        by: InstrumentedAttribute[Any],
        values: Sequence[Any],
        *where: Where,
        limit: int,
        **arguments: Any,
    ) -> Sequence[T]:
        """See :func:`sqlqueue.claim_in_turns`."""
        return operations.claim_in_turns(self, entity, by, values, *where, limit=limit, **arguments)

    def consume(
        self,
        entity: type[T],
        *where: Where,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> T | None:
        """See :func:`sqlqueue.consume`."""
        return operations.consume(self, entity, *where, order_by=order_by, options=options, claimed_by=claimed_by)

    def consume_many(
        self,
        entity: type[T],
        *where: Where,
        limit: int,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> Sequence[T]:
        """See :func:`sqlqueue.consume_many`."""
        return operations.consume_many(
            self, entity, *where, limit=limit, order_by=order_by, options=options, claimed_by=claimed_by
        )

    def claiming(
        self,
        entity: type[T],
        *where: Where,
        lease: Lease = "default",
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> AbstractContextManager[T | None]:
        """See :func:`sqlqueue.claiming`."""
        return operations.claiming(
            self, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
        )

    def complete(self, tasks: Tasks, result: object = None, *, stage: str | None = None) -> None:
        """See :func:`sqlqueue.complete`."""
        operations.complete(self, tasks, result, stage=stage)

    def fail(self, tasks: Tasks, error: BaseException | str, retry_in: timedelta | None = None) -> None:
        """See :func:`sqlqueue.fail`."""
        operations.fail(self, tasks, error, retry_in)

    @overload
    def discard(self, tasks: Tasks, /, error: BaseException | str) -> None: ...
    @overload
    def discard(
        self, entity: type[QueueMixin], /, *where: Where, error: BaseException | str, limit: int | None = None
    ) -> int: ...
    def discard(self, tasks: Any, /, *where: Any, **arguments: Any) -> int | None:
        """See :func:`sqlqueue.discard`."""
        discarded: int | None = operations.discard(self, tasks, *where, **arguments)
        return discarded

    @overload
    def cancel(self, tasks: Tasks, /) -> None: ...
    @overload
    def cancel(self, entity: type[QueueMixin], /, *where: Where, limit: int | None = None) -> int: ...
    def cancel(self, tasks: Any, /, *where: Where, limit: int | None = None) -> int | None:
        """See :func:`sqlqueue.cancel`."""
        cancelled: int | None = operations.cancel(self, tasks, *where, limit=limit)
        return cancelled

    def release(self, tasks: Tasks) -> None:
        """See :func:`sqlqueue.release`."""
        operations.release(self, tasks)

    def snooze(self, tasks: Tasks, delay: timedelta) -> None:
        """See :func:`sqlqueue.snooze`."""
        operations.snooze(self, tasks, delay)

    def heartbeat(self, tasks: Tasks, lease: timedelta | None = None) -> None:
        """See :func:`sqlqueue.heartbeat`."""
        operations.heartbeat(self, tasks, lease)

    @overload
    def enqueue(
        self,
        tasks: QueueMixin | Iterable[QueueMixin],
        /,
        *,
        on_conflict: OnConflict = "raise",
        version: InstrumentedAttribute[Any] | None = None,
        delay: timedelta | None = None,
    ) -> None: ...
    @overload
    def enqueue(
        self,
        entity: type[QueueMixin],
        rows: Iterable[Mapping[str, Any]],
        /,
        *,
        on_conflict: OnConflict = "raise",
        version: InstrumentedAttribute[Any] | None = None,
        delay: timedelta | None = None,
        copy: bool = False,
    ) -> None: ...
    def enqueue(self, *tasks: Any, **arguments: Any) -> None:
        """See :func:`sqlqueue.enqueue`."""
        operations.enqueue(self, *tasks, **arguments)

    def declare_schedules(
        self,
        entity: type[RecurringMixin],
        tasks: Iterable[Mapping[str, Any] | RecurringMixin],
        /,
        *where: Where,
        remove_missing: bool = False,
    ) -> DeclaredSchedules:
        """See :func:`sqlqueue.declare_schedules`."""
        return operations.declare_schedules(self, entity, tasks, *where, remove_missing=remove_missing)

    def reschedule(
        self,
        entity: type[QueueMixin],
        *where: Where,
        schedule: Schedule | str | None = None,
        drift: bool | None = None,
    ) -> int:
        """See :func:`sqlqueue.reschedule`."""
        return operations.reschedule(self, entity, *where, schedule=schedule, drift=drift)

    def unschedule(self, entity: type[QueueMixin], *where: Where) -> int:
        """See :func:`sqlqueue.unschedule`."""
        return operations.unschedule(self, entity, *where)

    def set_limit(self, entity: type[QueueMixin], key: str, limit: int) -> None:
        """See :func:`sqlqueue.set_limit`."""
        return operations.set_limit(self, entity, key, limit)

    def limits(self, entity: type[QueueMixin]) -> list[Limit]:
        """See :func:`sqlqueue.limits`."""
        return operations.limits(self, entity)

    def retry(self, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> int:
        """See :func:`sqlqueue.retry`."""
        return operations.retry(self, entity, *where, limit=limit)

    def rescue(self, entity: type[QueueMixin], *, limit: int | None = None) -> int:
        """See :func:`sqlqueue.rescue`."""
        return operations.rescue(self, entity, limit=limit)

    def prune(
        self,
        entity: type[QueueMixin],
        older_than: timedelta | None = None,
        *,
        limit: int | None = None,
        adopted: bool = False,
    ) -> Pruned:
        """See :func:`sqlqueue.prune`."""
        return operations.prune(self, entity, older_than, limit=limit, adopted=adopted)

    def stats(self, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueStats:
        """See :func:`sqlqueue.stats`."""
        return operations.stats(self, entity, *where, cap=cap)

    def stats_by(self, entity: type[QueueMixin], by: SQLCoreOperations[V], *where: Where) -> dict[V, QueueStats]:
        """See :func:`sqlqueue.stats_by`."""
        return operations.stats_by(self, entity, by, *where)

    def overview(self, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueOverview:
        """See :func:`sqlqueue.overview`."""
        return operations.overview(self, entity, *where, cap=cap)

    def timeline(
        self,
        entity: type[QueueMixin],
        *where: Where,
        bucket: timedelta = timedelta(hours=1),
        since: timedelta = timedelta(days=1),
    ) -> list[Bucket]:
        """See :func:`sqlqueue.timeline`."""
        return operations.timeline(self, entity, *where, bucket=bucket, since=since)

    def errors(self, entity: type[QueueMixin], *where: Where, cap: int | None = LAST) -> list[ErrorGroup]:
        """See :func:`sqlqueue.errors`."""
        return operations.errors(self, entity, *where, cap=cap)

    def find(
        self,
        entity: type[T],
        *where: Where,
        limit: int | None = None,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
    ) -> Sequence[T]:
        """See :func:`sqlqueue.find`."""
        return operations.find(self, entity, *where, limit=limit, order_by=order_by, options=options)

    def pause(
        self,
        entity: type[QueueMixin],
        topic: str | None = None,
        *,
        reason: str | None = None,
        paused_by: str | None = None,
    ) -> bool:
        """See :func:`sqlqueue.pause`."""
        return pausing.pause(self, entity, topic, reason=reason, paused_by=paused_by)

    def resume(self, entity: type[QueueMixin], topic: str | None = None) -> bool:
        """See :func:`sqlqueue.resume`."""
        return pausing.resume(self, entity, topic)

    def paused(self, entity: type[QueueMixin]) -> list[Pause]:
        """See :func:`sqlqueue.paused`."""
        return pausing.paused(self, entity)
