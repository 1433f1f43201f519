"""The functions of this package as methods of a worker and a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ..functions import TaskFunction
from ..functions.task import J
from ..model.mixins import QueueMixin, T
from ..queue.spec import Where
from ..transaction.connection import AnySession
from ..worker import Worker
from ..worker.handling.outcomes import OutcomeKind
from .assertions import assert_enqueued
from .performing import Counts, drain, perform

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

_NOW = timedelta(0)
S = TypeVar("S", bound=AnySession)
A = TypeVar("A", bound="AsyncSession | async_scoped_session[Any]")


@dataclass(frozen=True, slots=True)
class Queue(Generic[S]):
    """The value of the fixture ``queue``: a ``Queue[QueueSession]`` if ``queue_session`` returns a ``QueueSession``.

    Each method calls the function of the same name, where it is documented.
    """

    worker: Worker
    """The worker that the fixture ``queue_worker`` returned."""
    session: S
    """The session that the fixture ``queue_session`` returned."""

    def drain(self, *models: type[QueueMixin], raise_errors: bool = True, ahead: timedelta = _NOW) -> Counts:
        """Run all tasks that are due, see :func:`sqlqueue.testing.drain`."""
        return drain(self.worker, self.session, *models, raise_errors=raise_errors, ahead=ahead)

    def perform(self, task: QueueMixin, *, raise_errors: bool = True) -> OutcomeKind:
        """Run one task, see :func:`sqlqueue.testing.perform`."""
        return perform(self.worker, self.session, task, raise_errors=raise_errors)

    @overload
    def assert_enqueued(
        self, what: type[T], /, *where: Where, count: int | None = ..., **values: object
    ) -> list[T]: ...
    @overload
    def assert_enqueued(
        self, what: TaskFunction[..., ..., Any, J], /, *where: Where, count: int | None = ..., **values: object
    ) -> list[J]: ...
    def assert_enqueued(self, what: Any, /, *where: Where, count: int | None = None, **values: object) -> Any:
        """Assert that matching tasks are waiting, see :func:`sqlqueue.testing.assert_enqueued`."""
        return assert_enqueued(self.session, what, *where, count=count, **values)


@dataclass(frozen=True, slots=True)
class AsyncQueue(Generic[A]):
    """A :class:`Queue` with an asyncio session: ``AsyncQueue[AsyncQueueSession]``."""

    worker: Worker
    """The worker that the fixture ``queue_worker`` returned."""
    session: A
    """The session that the fixture ``queue_session`` returned."""

    async def drain(self, *models: type[QueueMixin], raise_errors: bool = True, ahead: timedelta = _NOW) -> Counts:
        """Run all tasks that are due, see :func:`sqlqueue.testing.drain`."""
        return await drain(self.worker, self.session, *models, raise_errors=raise_errors, ahead=ahead)

    async def perform(self, task: QueueMixin, *, raise_errors: bool = True) -> OutcomeKind:
        """Run one task, see :func:`sqlqueue.testing.perform`."""
        return await perform(self.worker, self.session, task, raise_errors=raise_errors)

    @overload
    async def assert_enqueued(
        self, what: type[T], /, *where: Where, count: int | None = ..., **values: object
    ) -> list[T]: ...
    @overload
    async def assert_enqueued(
        self, what: TaskFunction[..., ..., Any, J], /, *where: Where, count: int | None = ..., **values: object
    ) -> list[J]: ...
    async def assert_enqueued(self, what: Any, /, *where: Where, count: int | None = None, **values: object) -> Any:
        """Assert that matching tasks are waiting, see :func:`sqlqueue.testing.assert_enqueued`."""
        return await assert_enqueued(self.session, what, *where, count=count, **values)
