"""The session of an asyncio application: ``async_sessionmaker(engine, class_=AsyncQueueSession)``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, overload

from sqlalchemy.ext.asyncio import AsyncSession
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
from .session import QueueSession


class AsyncQueueSession(AsyncSession):
    """A :class:`sqlalchemy.ext.asyncio.AsyncSession` with the operations of :mod:`sqlqueue` as methods.

    Each runs the function of the same name, where it is documented, on the session within.
    """

    sync_session_class: type[Session] = QueueSession

    async def claim(
        self,
        entity: type[T],
        *where: Where,
        lease: Lease = "default",
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> T | None:
        """See :func:`sqlqueue.claim`."""
        return await self.run_sync(
            operations.claim, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
        )

    async def claim_many(
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
        return await self.run_sync(
            operations.claim_many,
            entity,
            *where,
            limit=limit,
            lease=lease,
            order_by=order_by,
            options=options,
            claimed_by=claimed_by,
        )

    async def claim_in_turns(
        self,
        entity: type[T],
        by: InstrumentedAttribute[Any],
        values: Sequence[Any],
        *where: Where,
        limit: int,
        **arguments: Any,
    ) -> Sequence[T]:
        """See :func:`sqlqueue.claim_in_turns`."""
        return await self.run_sync(
            lambda session: operations.claim_in_turns(session, entity, by, values, *where, limit=limit, **arguments)
        )

    async def consume(
        self,
        entity: type[T],
        *where: Where,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> T | None:
        """See :func:`sqlqueue.consume`."""
        return await self.run_sync(
            operations.consume, entity, *where, order_by=order_by, options=options, claimed_by=claimed_by
        )

    async def consume_many(
        self,
        entity: type[T],
        *where: Where,
        limit: int,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> Sequence[T]:
        """See :func:`sqlqueue.consume_many`."""
        return await self.run_sync(
            operations.consume_many,
            entity,
            *where,
            limit=limit,
            order_by=order_by,
            options=options,
            claimed_by=claimed_by,
        )

    @asynccontextmanager
    async def claiming(
        self,
        entity: type[T],
        *where: Where,
        lease: Lease = "default",
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
        claimed_by: str | None = None,
    ) -> AsyncGenerator[T | None]:
        """See :func:`sqlqueue.claiming`."""
        block = operations.claiming(
            self.sync_session, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by
        )
        task = await self.run_sync(lambda _: block.__enter__())
        try:
            yield task
        except BaseException as error:
            if not await self.run_sync(_leave, block, error):
                raise
        else:
            await self.run_sync(lambda _: block.__exit__(None, None, None))

    async def complete(self, tasks: Tasks, result: object = None, *, stage: str | None = None) -> None:
        """See :func:`sqlqueue.complete`."""
        await self.run_sync(operations.complete, tasks, result, stage=stage)

    async def fail(self, tasks: Tasks, error: BaseException | str, retry_in: timedelta | None = None) -> None:
        """See :func:`sqlqueue.fail`."""
        await self.run_sync(operations.fail, tasks, error, retry_in)

    @overload
    async def discard(self, tasks: Tasks, /, error: BaseException | str) -> None: ...
    @overload
    async def discard(
        self, entity: type[QueueMixin], /, *where: Where, error: BaseException | str, limit: int | None = None
    ) -> int: ...
    async def discard(self, tasks: Any, /, *where: Any, **arguments: Any) -> int | None:
        """See :func:`sqlqueue.discard`."""
        discarded: int | None = await self.run_sync(operations.discard, tasks, *where, **arguments)
        return discarded

    @overload
    async def cancel(self, tasks: Tasks, /) -> None: ...
    @overload
    async def cancel(self, entity: type[QueueMixin], /, *where: Where, limit: int | None = None) -> int: ...
    async def cancel(self, tasks: Any, /, *where: Where, limit: int | None = None) -> int | None:
        """See :func:`sqlqueue.cancel`."""
        return await self.run_sync(operations.cancel, tasks, *where, limit=limit)

    async def release(self, tasks: Tasks) -> None:
        """See :func:`sqlqueue.release`."""
        await self.run_sync(operations.release, tasks)

    async def snooze(self, tasks: Tasks, delay: timedelta) -> None:
        """See :func:`sqlqueue.snooze`."""
        await self.run_sync(operations.snooze, tasks, delay)

    async def heartbeat(self, tasks: Tasks, lease: timedelta | None = None) -> None:
        """See :func:`sqlqueue.heartbeat`."""
        await self.run_sync(operations.heartbeat, tasks, lease)

    @overload
    async def enqueue(
        self,
        tasks: QueueMixin | Iterable[QueueMixin],
        /,
        *,
        on_conflict: OnConflict = "raise",
        version: InstrumentedAttribute[Any] | None = None,
        delay: timedelta | None = None,
    ) -> None: ...
    @overload
    async def enqueue(
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
    async def enqueue(self, *tasks: Any, **arguments: Any) -> None:
        """See :func:`sqlqueue.enqueue`."""
        await self.run_sync(operations.enqueue, *tasks, **arguments)

    async def declare_schedules(
        self,
        entity: type[RecurringMixin],
        tasks: Iterable[Mapping[str, Any] | RecurringMixin],
        /,
        *where: Where,
        remove_missing: bool = False,
    ) -> DeclaredSchedules:
        """See :func:`sqlqueue.declare_schedules`."""
        return await self.run_sync(operations.declare_schedules, entity, tasks, *where, remove_missing=remove_missing)

    async def reschedule(
        self,
        entity: type[QueueMixin],
        *where: Where,
        schedule: Schedule | str | None = None,
        drift: bool | None = None,
    ) -> int:
        """See :func:`sqlqueue.reschedule`."""
        return await self.run_sync(operations.reschedule, entity, *where, schedule=schedule, drift=drift)

    async def unschedule(self, entity: type[QueueMixin], *where: Where) -> int:
        """See :func:`sqlqueue.unschedule`."""
        return await self.run_sync(operations.unschedule, entity, *where)

    async def set_limit(self, entity: type[QueueMixin], key: str, limit: int) -> None:
        """See :func:`sqlqueue.set_limit`."""
        return await self.run_sync(operations.set_limit, entity, key, limit)

    async def limits(self, entity: type[QueueMixin]) -> list[Limit]:
        """See :func:`sqlqueue.limits`."""
        return await self.run_sync(operations.limits, entity)

    async def retry(self, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> int:
        """See :func:`sqlqueue.retry`."""
        return await self.run_sync(operations.retry, entity, *where, limit=limit)

    async def rescue(self, entity: type[QueueMixin], *, limit: int | None = None) -> int:
        """See :func:`sqlqueue.rescue`."""
        return await self.run_sync(operations.rescue, entity, limit=limit)

    async def prune(
        self,
        entity: type[QueueMixin],
        older_than: timedelta | None = None,
        *,
        limit: int | None = None,
        adopted: bool = False,
    ) -> Pruned:
        """See :func:`sqlqueue.prune`."""
        return await self.run_sync(operations.prune, entity, older_than, limit=limit, adopted=adopted)

    async def stats(self, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueStats:
        """See :func:`sqlqueue.stats`."""
        return await self.run_sync(operations.stats, entity, *where, cap=cap)

    async def stats_by(self, entity: type[QueueMixin], by: SQLCoreOperations[V], *where: Where) -> dict[V, QueueStats]:
        """See :func:`sqlqueue.stats_by`."""
        return await self.run_sync(operations.stats_by, entity, by, *where)

    async def overview(self, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueOverview:
        """See :func:`sqlqueue.overview`."""
        return await self.run_sync(operations.overview, entity, *where, cap=cap)

    async def timeline(
        self,
        entity: type[QueueMixin],
        *where: Where,
        bucket: timedelta = timedelta(hours=1),
        since: timedelta = timedelta(days=1),
    ) -> list[Bucket]:
        """See :func:`sqlqueue.timeline`."""
        return await self.run_sync(operations.timeline, entity, *where, bucket=bucket, since=since)

    async def errors(self, entity: type[QueueMixin], *where: Where, cap: int | None = LAST) -> list[ErrorGroup]:
        """See :func:`sqlqueue.errors`."""
        return await self.run_sync(operations.errors, entity, *where, cap=cap)

    async def find(
        self,
        entity: type[T],
        *where: Where,
        limit: int | None = None,
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
    ) -> Sequence[T]:
        """See :func:`sqlqueue.find`."""
        return await self.run_sync(operations.find, entity, *where, limit=limit, order_by=order_by, options=options)

    async def pause(
        self,
        entity: type[QueueMixin],
        topic: str | None = None,
        *,
        reason: str | None = None,
        paused_by: str | None = None,
    ) -> bool:
        """See :func:`sqlqueue.pause`."""
        return await self.run_sync(pausing.pause, entity, topic, reason=reason, paused_by=paused_by)

    async def resume(self, entity: type[QueueMixin], topic: str | None = None) -> bool:
        """See :func:`sqlqueue.resume`."""
        return await self.run_sync(pausing.resume, entity, topic)

    async def paused(self, entity: type[QueueMixin]) -> list[Pause]:
        """See :func:`sqlqueue.paused`."""
        return await self.run_sync(pausing.paused, entity)


def _leave(session: Session, block: AbstractContextManager[object], error: BaseException) -> bool | None:
    return block.__exit__(type(error), error, error.__traceback__)
