"""The session of an asyncio application: ``async_sessionmaker(engine, class_=AsyncQueueSession)``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from datetime import timedelta
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Session

from . import operations
from ._support.errors import Claim
from .model.declaration import QueueMixin
from .operations import Awaited, OnConflict, Tasks, When
from .queue.spec import Where
from .session import QueueSession

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=QueueMixin)
_AT_ONCE = 100
"""The number of tasks that are loaded before the first of them is returned."""


def _awaited(
    operation: Callable[Concatenate[Session, P], R],
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]:
    """Return ``operation`` as a coroutine method that runs on the underlying sync session."""

    @wraps(operation)
    async def method(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.run_sync(operation, *args, **kwargs)

    return method


def _awaited_block(
    operation: Callable[Concatenate[Session, P], AbstractContextManager[R]],
) -> Callable[Concatenate[AsyncSession, P], AbstractAsyncContextManager[R]]:
    """Return ``operation``, which returns a context manager, as a method for ``async with``."""

    @wraps(operation)
    @asynccontextmanager
    async def method(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R]:
        block = operation(self.sync_session, *args, **kwargs)
        entered = await self.run_sync(lambda _: block.__enter__())
        try:
            yield entered
        except BaseException as error:
            if not await self.run_sync(_leave, block, error):
                raise
        else:
            await self.run_sync(lambda _: block.__exit__(None, None, None))

    return method


def _leave(session: Session, block: AbstractContextManager[object], error: BaseException) -> bool | None:
    return block.__exit__(type(error), error, error.__traceback__)


class AsyncQueueSession(AsyncSession):
    """A :class:`sqlalchemy.ext.asyncio.AsyncSession` with the operations of :mod:`sqlqueue` as methods.

    Each method is the function of the same name, run on the underlying sync session.
    """

    sync_session_class: type[Session] = QueueSession

    claim = _awaited(operations.claim)
    claim_many = _awaited(operations.claim_many)
    claiming = _awaited_block(operations.claiming)
    consume = _awaited(operations.consume)
    consume_many = _awaited(operations.consume_many)

    complete = _awaited(operations.complete)
    fail = _awaited(operations.fail)
    release = _awaited(operations.release)
    snooze = _awaited(operations.snooze)
    heartbeat = _awaited(operations.heartbeat)

    batch = _awaited_block(operations.batch)
    seal = _awaited(operations.seal)
    advance = _awaited(operations.advance)
    event = _awaited(operations.event)
    open_event = _awaited(operations.open_event)
    progress = _awaited(operations.progress)
    graph = _awaited(operations.graph)
    batches = _awaited(operations.batches)
    cancel_batch = _awaited(operations.cancel_batch)
    declare_schedules = _awaited(operations.declare_schedules)
    reschedule = _awaited(operations.reschedule)
    unschedule = _awaited(operations.unschedule)

    retry = _awaited(operations.retry)
    rerun = _awaited(operations.rerun)
    run_now = _awaited(operations.run_now)
    promote = _awaited(operations.promote)
    rescue = _awaited(operations.rescue)
    prune = _awaited(operations.prune)
    set_limit = _awaited(operations.set_limit)
    set_rate = _awaited(operations.set_rate)
    limits = _awaited(operations.limits)
    keys = _awaited(operations.keys)
    pause = _awaited(operations.pause)
    resume = _awaited(operations.resume)
    paused = _awaited(operations.paused)
    workers = _awaited(operations.workers)
    unserved = _awaited(operations.unserved)
    drain_workers = _awaited(operations.drain_workers)
    release_workers = _awaited(operations.release_workers)
    stop_workers = _awaited(operations.stop_workers)
    set_concurrency = _awaited(operations.set_concurrency)

    find = _awaited(operations.find)
    stats = _awaited(operations.stats)
    stats_by = _awaited(operations.stats_by)
    overview = _awaited(operations.overview)
    timeline = _awaited(operations.timeline)
    errors = _awaited(operations.errors)
    why = _awaited(operations.why)
    history = _awaited(operations.history)
    prune_history = _awaited(operations.prune_history)
    prune_batches = _awaited(operations.prune_batches)

    @wraps(operations.predecessors, assigned=("__doc__",))
    async def predecessors(
        self, entity: type[T], *where: Where, of: QueueMixin | Claim | None = None
    ) -> AsyncGenerator[T]:
        found = await self.run_sync(operations.predecessors, entity, *where, of=of)
        while some := await self.run_sync(lambda _: list(islice(found, _AT_ONCE))):
            for task in some:
                yield task

    # a ParamSpec captures one signature, but these have two

    @overload
    async def discard(self, tasks: Tasks, /, error: BaseException | str) -> None: ...
    @overload
    async def discard(
        self, entity: type[QueueMixin], /, *where: Where, error: BaseException | str, limit: int | None = None
    ) -> int: ...
    @wraps(operations.discard)
    async def discard(self, tasks: Any, /, *where: Any, **arguments: Any) -> int | None:
        discarded: int | None = await self.run_sync(operations.discard, tasks, *where, **arguments)
        return discarded

    @overload
    async def cancel(self, tasks: Tasks, /) -> None: ...
    @overload
    async def cancel(self, entity: type[QueueMixin], /, *where: Where, limit: int | None = None) -> int: ...
    @wraps(operations.cancel)
    async def cancel(self, tasks: Any, /, *where: Where, limit: int | None = None) -> int | None:
        return await self.run_sync(operations.cancel, tasks, *where, limit=limit)

    @overload
    async def enqueue(
        self,
        tasks: QueueMixin | Iterable[QueueMixin],
        /,
        *,
        on_conflict: OnConflict = "raise",
        version: InstrumentedAttribute[Any] | None = None,
        delay: timedelta | None = None,
        max_delay: timedelta | None = None,
        expires: timedelta | None = None,
        after: Awaited | Iterable[Awaited] | None = None,
        when: When = "completed",
        timeout: timedelta | None = None,
        into: Awaited | None = None,
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
        max_delay: timedelta | None = None,
        expires: timedelta | None = None,
        after: Awaited | Iterable[Awaited] | None = None,
        when: When = "completed",
        timeout: timedelta | None = None,
        into: Awaited | None = None,
        copy: bool = False,
    ) -> None: ...
    @wraps(operations.enqueue)
    async def enqueue(self, *tasks: Any, **arguments: Any) -> None:
        await self.run_sync(operations.enqueue, *tasks, **arguments)
