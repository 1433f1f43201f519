"""Helpers for the tests of an application: run tasks as a worker would, and assert what was enqueued."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from sqlalchemy import event, func, literal, select
from sqlalchemy.orm import ORMExecuteState, Session, scoped_session, sessionmaker

from .. import operations
from .._support.checks import count, duration
from .._support.errors import ArgumentError, ClaimLostError, HandlerNotFoundError
from ..dialects.base import Adapter
from ..functions import TaskFunction
from ..model.companions import latches_of
from ..model.declaration import COLUMNS, QueueMixin, T
from ..operations.paging import Damaged, find_all
from ..queue.options import Status
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql import NEVER, clock_ahead, only, state, utcnow
from ..transaction import Access, AnySession, claim_of, is_unsettled, open_, running, session_of
from ..worker import (
    AsyncSteps,
    Handler,
    Job,
    OutcomeKind,
    Steps,
    Turns,
    Worker,
    call_handler,
    is_signal,
    outcome_of,
    outcomes_in,
    write_outcomes,
    write_reports,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

    AnyAsyncSession: TypeAlias = AsyncSession | async_scoped_session[Any]


# -- running tasks as a worker would, in the session of a test --------------------------------------------------------

Counts: TypeAlias = Counter[OutcomeKind]
"""The number of tasks by outcome: ``counts["completed"]``."""
_NAME = "sqlqueue.testing"


class _Performed(NamedTuple):
    kind: OutcomeKind
    error: BaseException | None


@overload
def perform(worker: Worker, session: AnySession, task: QueueMixin, *, raise_errors: bool = ...) -> OutcomeKind: ...
@overload
def perform(
    worker: Worker, session: AnyAsyncSession, task: QueueMixin, *, raise_errors: bool = ...
) -> Coroutine[Any, Any, OutcomeKind]: ...
def perform(worker: Worker, session: Any, task: QueueMixin, *, raise_errors: bool = True) -> Any:
    """Call the worker's handler for ``task`` in the session's transaction, within a savepoint, and settle the task.

    ``task`` is a row of this session; it is claimed now if it was not claimed before.  Returns its outcome:
    ``"completed"``, or after an exception ``"failed"``, ``"snoozed"``, ``"discarded"`` or ``"cancelled"``; the last
    attempt that fails is ``"discarded"``.  Nothing is committed, and ``task`` shows the outcome.

    An exception rolls back to the savepoint, is recorded as the task's failure, and is raised; with
    ``raise_errors=False`` it is only recorded.  Signals of the handler (:class:`.Retry` and the like) are not raised.

    Raises :class:`.HandlerNotFoundError` if the worker has no handler for the task, and :class:`.ArgumentError` if it
    cannot be claimed now or its handler takes a session of the other kind.  Handler timeouts are not enforced.
    """
    if hasattr(session, "run_sync"):
        return _perform_async(worker, session, task, raise_errors)
    session = session_of(session)
    return _said(_perform_one(session, session, worker, task), raise_errors)


@overload
def drain(
    worker: Worker,
    session: AnySession | sessionmaker[Any] | None = None,
    /,
    *models: type[QueueMixin],
    raise_errors: bool = ...,
    ahead: timedelta = ...,
    limit: int = ...,
) -> Counts: ...
@overload
def drain(
    worker: Worker,
    session: AnyAsyncSession | async_sessionmaker[Any],
    /,
    *models: type[QueueMixin],
    raise_errors: bool = ...,
    ahead: timedelta = ...,
    limit: int = ...,
) -> Coroutine[Any, Any, Counts]: ...
def drain(
    worker: Worker,
    session: Any = None,
    /,
    *models: type[QueueMixin],
    raise_errors: bool = True,
    ahead: timedelta = timedelta(0),
    limit: int = 1_000,
) -> Any:
    """Run all tasks that are due and that the worker has handlers for, as well as tasks that these enqueue.

    ``session``: a session, in whose transaction everything happens; or a ``sessionmaker`` (by default the worker's),
    with a committed transaction for each call.  ``models``: run tasks of these models only.  Calls follow one another,
    as with :func:`perform`: those of one handler in claim order, handlers in the order of their registration.  A
    handler with ``chunk`` gets as many tasks as are due, up to that number; if it fails with several, each half is
    tried again, so that the failing task alone is charged.
    Between two calls, what waits for the ends of others starts, as in a worker.
    Returns the number of tasks by outcome; a task that fails in its last attempt counts as ``"discarded"``.

    ``ahead``: how much time passes for the queue meanwhile: whatever comes due until then runs, at its time, by a
    simulated clock that jumps from one due task to the next.  That is the clock of this package's operations in the
    session during this call, and of :func:`.utcnow`; each call begins at the present.
    ``limit``: the maximum number of tasks; beyond it :class:`AssertionError` is raised, since a task probably enqueues
    itself endlessly.  Raises errors as :func:`perform` does, and :class:`.ArgumentError` if ``session`` is missing and
    the worker's sessions are asyncio ones.
    """
    wanted = [each for each in worker.handlers if not models or issubclass(each.entity, models)]
    draining = _Drain(wanted, raise_errors, duration("ahead", ahead, zero=True), count("limit", limit))
    where = worker.sessions if session is None else session
    if not _is_async(where):
        return _drain(where, draining)
    if session is None:
        raise ArgumentError("this worker has asyncio sessions: await drain(worker, Session)")
    return _drain_async(where, draining)


def _is_async(where: Any) -> bool:
    return hasattr(where, "run_sync") or type(where).__name__ == "async_sessionmaker"


async def _perform_async(worker: Worker, session: Any, task: QueueMixin, raise_errors: bool) -> OutcomeKind:
    return _said(await session.run_sync(_perform_one, session, worker, task), raise_errors)


def _drain(where: Any, draining: _Drain) -> Counts:
    goes_on = True
    while goes_on:
        with _transaction(where) as session:
            ended = draining.next(session_of(session), session)
        goes_on = draining.note(ended)
    return draining.counts


async def _drain_async(where: Any, draining: _Drain) -> Counts:
    goes_on = True
    while goes_on:
        async with _transaction(where) as session:
            ended = await session.run_sync(draining.next, session)
        goes_on = draining.note(ended)
    return draining.counts


def _transaction(where: Any) -> Any:
    is_session = isinstance(where, (Session, scoped_session)) or hasattr(where, "run_sync")
    return nullcontext(where) if is_session else where.begin()


@dataclass
class _Drain:
    handlers: list[Handler]
    raise_errors: bool
    ahead: timedelta
    limit: int
    counts: Counts = field(default_factory=Counter)
    passed: timedelta = timedelta(0)
    """How far the simulated clock is ahead of the database's."""

    def next(self, session: Session, handed: Any) -> list[_Performed]:
        """Claim and run the tasks of one call; none if there are none."""
        while True:
            with _clock_of(session, self.passed):
                if performed := self._next_due(session, handed):
                    return performed
                step = self._until_next(session) if self.ahead else None
            if step is None or self.passed + step > self.ahead:
                return []
            self.passed += step

    def _next_due(self, session: Session, handed: Any) -> list[_Performed]:
        self._advance(session)
        while True:
            for handler in self.handlers:
                limit, options = handler.chunk or 1, handler.options
                tasks = operations.claim_many(
                    session, handler.entity, *handler.where, limit=limit, options=options, claimed_by=_NAME
                )
                if tasks:
                    return _perform(session, handed, handler, tasks)
            if not self._advance(session):  # others may have waited for what the claims have found expired
                return []

    def _advance(self, session: Session) -> int:
        flows = (handler.spec for handler in self.handlers if latches_of(handler.spec) is not None)
        specs = {spec.table.metadata: spec for spec in flows}.values()
        return sum(operations.advance(session, spec.entity) for spec in specs)

    def note(self, ended: Sequence[_Performed]) -> bool:
        """Count outcomes.  Returns whether there may be more tasks."""
        if not ended:
            return False
        self.counts.update([_said(each, self.raise_errors) for each in ended])
        if self.counts.total() > self.limit:
            raise AssertionError(f"more than {self.limit} tasks, so far {dict(self.counts)}: does one enqueue itself?")
        return True

    def _until_next(self, session: Session) -> timedelta | None:
        """Return the time until the next task comes due, if any is waiting."""
        steps = (_until_next(session, spec) for spec in {handler.spec for handler in self.handlers})
        return min((step for step in steps if step is not None), default=None)


@contextmanager
def _clock_of(session: Session, ahead: timedelta) -> Iterator[None]:
    """Let the session's statements see a clock that is ``ahead`` of the database's; no other session sees it."""
    seconds, compiled, before = ahead.total_seconds(), dict[Any, Any](), list[float]()

    def execute(state: ORMExecuteState) -> Any:
        state.update_execution_options(compiled_cache=compiled)  # not the engine's: the clock is part of the SQL
        token = clock_ahead.set(seconds)
        try:
            return state.invoke_statement()
        finally:
            clock_ahead.reset(token)

    def flushing(*_: object) -> None:
        before.append(clock_ahead.get())
        clock_ahead.set(seconds)

    def flushed(*_: object) -> None:
        if before:
            clock_ahead.set(before.pop())

    listeners: dict[str, Callable[..., Any]] = {
        "do_orm_execute": execute,
        "before_flush": flushing,
        "after_flush": flushed,
        "after_soft_rollback": flushed,  # of a flush that has failed
    }
    for name, listener in listeners.items():
        event.listen(session, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(session, name, listener)


_COMING = (Status.SCHEDULED, Status.RETRYABLE, Status.WAITING)


def _until_next(session: Session, spec: QueueSpec) -> timedelta | None:
    waits, moment = spec["status"].in_([state(status) for status in _COMING]), spec["available_at"]
    asked = select(utcnow(), func.min(moment)).where(waits, moment > utcnow(), moment < literal(NEVER, moment.type))
    row: Any = open_(session, spec).rows.execute(session, spec, asked).one()
    now, first = row
    return None if first is None else max(first - now, timedelta(microseconds=1))


def _said(ended: _Performed, raise_errors: bool) -> OutcomeKind:
    if raise_errors and ended.error is not None:
        raise ended.error
    return ended.kind


def _perform_one(session: Session, handed: Any, worker: Worker, task: QueueMixin) -> _Performed:
    adapter = open_(session, spec_of(type(task)), Access.SKIP)
    handler = _handler(session, adapter, worker.handlers, task)
    if not is_unsettled(task):
        _claim(session, task, handler)
    elif handler.options:
        session.flush()
        identity = handler.spec.identity_of(task)
        adapter.rows.load(session, handler.spec, [identity], handler.options)
    (performed,) = _perform(session, handed, handler, [task])
    return performed


def _handler(session: Session, adapter: Adapter, handlers: Iterable[Handler], task: QueueMixin) -> Handler:
    spec = spec_of(type(task))
    key = spec.key(spec.identity_of(task))
    for handler in handlers:
        if isinstance(task, handler.entity) and (
            not handler.where or adapter.rows.exists(session, spec, only(spec, key, *handler.where))
        ):
            return handler
    name = type(task).__name__
    raise HandlerNotFoundError(f"this worker has no handler for {task!r} ({name}): register one", name=name)


def _claim(session: Session, task: QueueMixin, handler: Handler) -> None:
    spec = spec_of(type(task))
    identity = spec.identity_of(task)
    mine = spec.key(identity)
    if operations.claim(session, type(task), mine, options=handler.options, claimed_by=_NAME) is not task:
        status, since = (getattr(task, spec.attributes[role]) for role in ("status", "available_at"))
        raise ArgumentError(
            f"{type(task).__name__} {identity} cannot be claimed now: it is {status}, available_at {since}"
        )


def _perform(session: Session, handed: Any, handler: Handler, tasks: Sequence[Any]) -> list[_Performed]:
    """Run the handler for a task, or with ``chunk`` for several, in a savepoint of the test's transaction, and settle
    them.  If it fails with several, each half of them is tried again."""
    claims = [claim_of(task) for task in tasks]
    if handler.mode == "at-most-once":
        operations.complete(session, claims)
    jobs, savepoint = [Job(handler, task) for task in tasks], session.begin_nested()
    try:
        result = _call(session, handed, jobs)
        results = {id(tasks[0]): result} if handler.chunk is None else outcomes_in(handler, tasks, result)
        ended = [_settled(session, job, task, results.get(id(task))) for job, task in zip(jobs, tasks, strict=True)]
        savepoint.commit()
    except Exception as error:
        if isinstance(error, ClaimLostError) or session.get_nested_transaction() is not savepoint:
            raise  # the engine has ended the whole transaction, or another task's claim was lost
        savepoint.commit() if handler.takes_steps else savepoint.rollback()  # steps that have run stay
        if len(tasks) > 1:
            adapter, middle = open_(session, handler.spec), len(tasks) // 2
            adapter.rows.load(session, handler.spec, [claim.identity for claim in claims], handler.options)
            halves = (tasks[:middle], tasks[middle:])
            return [each for half in halves for each in _perform(session, handed, handler, half)]
        if not is_unsettled(tasks[0]):
            return [_Performed("completed", error)]
        return [_failed(session, tasks[0], jobs[0], error)]
    for task, (kind, _) in zip(tasks, ended, strict=True):
        if kind == "completed":
            _reload(session, task)
    return ended


def _settled(session: Session, job: Job, task: Any, result: object) -> _Performed:
    """Settle a task whose handler has returned, unless that has settled it."""
    if isinstance(result, BaseException):
        return _failed(session, task, job, result)
    if is_unsettled(task):
        write_reports(session, [job])
        operations.complete(session, job.claim, result)
    return _Performed("completed", None)


def _failed(session: Session, task: Any, job: Job, error: BaseException) -> _Performed:
    outcome = outcome_of(error)
    write_reports(session, [job])
    write_outcomes(session, [(job.claim, outcome)])
    status = _reload(session, task)
    kind = "discarded" if outcome.kind == "failed" and status == Status.DISCARDED else outcome.kind
    return _Performed(kind, None if is_signal(error) else error)


def _reload(session: Session, task: Any) -> str | None:
    """Load the outcome, since asyncio cannot do so when the test reads it; return the status, if the row exists."""
    spec = spec_of(type(task))
    row = select(spec.entity).where(spec.key(spec.identity_of(task))).execution_options(populate_existing=True)
    found = session.scalars(row, bind_arguments=spec.bind_arguments).unique().one_or_none()
    return None if found is None else getattr(found, spec.attributes["status"])


def _call(session: Session, handed: Any, jobs: Sequence[Job]) -> object:
    """Call the handler.  Returns its result if the model stores results."""
    (handler, *_), tasks = [job.handler for job in jobs], [job.task for job in jobs]
    is_async = handed is not session
    if (handler.takes_session or handler.takes_steps) and handler.is_coroutine != is_async:
        raise ArgumentError(f"{handler.name} needs {'a plain' if is_async else 'an asyncio'} session")
    argument = tasks[0] if handler.chunk is None else tasks
    unlimited, arguments = replace(handler, timeout=None), [handed, argument] if handler.takes_session else [argument]
    turns = Turns(is_async=handler.is_coroutine)

    def transact(_: Job, *step: Any) -> Any:
        with turns:  # steps that run at once have one session here
            return _in_savepoint(session, handed, *step)

    steps = Steps(jobs[0], transact)
    if handler.takes_steps:
        arguments = [AsyncSteps(steps) if handler.is_coroutine else steps, argument]
    token = running.set(jobs[0]) if handler.chunk is None else None
    try:
        if handler.is_coroutine and not is_async:
            from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

            return asyncio.run(greenlet_spawn(call_handler, unlimited, *arguments))
        result = call_handler(unlimited, *arguments)
        steps.end()
        return result
    finally:
        if handler.takes_steps:
            with turns:  # after the failure of one step, others go on
                pass
        if token is not None:
            running.reset(token)


def _in_savepoint(
    session: Session,
    handed: Any,
    work: Callable[[Any, Session], Any],
    writing: Callable[[Session, Any], AbstractContextManager[None]],
) -> Any:
    """Keep what a step does, and what is recorded of it, in the test's transaction."""
    savepoint = session.begin_nested()
    try:
        result = work(handed, session)
        with writing(session, result):
            savepoint.commit()
    except BaseException:
        if session.get_nested_transaction() is savepoint:
            savepoint.rollback()
        raise
    return result


# -- assertions about waiting tasks -----------------------------------------------------------------------------------

T_co = TypeVar("T_co", bound=QueueMixin, covariant=True)
_WAITING = (Status.AVAILABLE, Status.SCHEDULED, Status.RETRYABLE, Status.WAITING)
_SHOWN = 10


class _Enqueues(Protocol[T_co]):
    @property
    def entity(self) -> type[T_co]: ...


@overload
def assert_enqueued(
    session: AnySession, what: type[T] | _Enqueues[T], /, *where: Where, count: int | None = ..., **values: object
) -> list[T]: ...
@overload
def assert_enqueued(
    session: AnyAsyncSession, what: type[T] | _Enqueues[T], /, *where: Where, count: int | None = ..., **values: object
) -> Coroutine[Any, Any, list[T]]: ...
def assert_enqueued(session: Any, what: Any, /, *where: Where, count: int | None = None, **values: object) -> Any:
    """Assert that matching tasks are waiting, and return them.

    ``what``: a model, with ``values`` of its attributes; or a task function made by :meth:`.Worker.task`, with
    ``values`` of its arguments.  ``where``: criteria, as for a claim.  ``count``: the exact number, 0 for none; by
    default at least one.  They are available, scheduled, retryable or waiting for others, as this session's transaction
    sees them.

    Rows that cannot be read do not count.

    Raises :class:`AssertionError`, which lists the waiting tasks, if the number is different, and
    :class:`.ArgumentError` for unknown attributes or arguments.
    """
    __tracebackhide__ = True
    if hasattr(session, "run_sync"):
        return session.run_sync(_assert_enqueued, what, where, count, values)
    return _assert_enqueued(session_of(session), what, where, count, values)


def _assert_enqueued(
    session: Session, what: Any, where: Sequence[Where], count: int | None, values: dict[str, object]
) -> list[Any]:
    __tracebackhide__ = True  # pytest shows the test
    spec = spec_of(what.entity if isinstance(what, TaskFunction) else what)
    waits = spec["status"].in_([state(status) for status in _WAITING])
    waiting: Sequence[Any] = find_all(session, spec.entity, waits, *where)
    if isinstance(what, TaskFunction):
        name = what.name
        waiting = [job for job in waiting if getattr(job, spec.attributes["task"]) == name]
        found = [job for job in _readable(waiting) if _has(what, what.arguments_of(job), values)]
    else:
        name = spec.entity.__name__
        found = [task for task in _readable(waiting) if _has(name, _shown(spec, task, all_=True), values)]
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(_complaint(spec, f"{name}({_listed(values)})", count, len(found), waiting))


def _readable(waiting: Sequence[Any]) -> list[Any]:
    return [task for task in waiting if not isinstance(task, Damaged)]


def _has(of: object, given: dict[str, Any], values: dict[str, object]) -> bool:
    unknown = sorted(values.keys() - given.keys())
    if unknown:
        raise ArgumentError(f"{of} has no {', '.join(unknown)}")
    return all(given[name] == value for name, value in values.items())


def _shown(spec: QueueSpec, task: object, *, all_: bool = False) -> dict[str, Any]:
    bookkeeping = {spec.attributes[role] for role in COLUMNS if role not in ("status", "available_at")}
    names = (prop.key for prop in spec.mapper.column_attrs)
    return {name: getattr(task, name) for name in names if all_ or name not in bookkeeping}


def _complaint(spec: QueueSpec, wanted: str, count: int | None, found: int, waiting: Sequence[Any]) -> str:
    number = "at least one" if count is None else str(count)
    lines = [f"expected {number} of {wanted}: {found} waiting ({len(waiting)} in total)"]
    for task in waiting[:_SHOWN]:
        lines.append(f"  {spec.entity.__name__}({_listed(_shown(spec, task))})")
    return "\n".join([*lines, "  ..."] if len(waiting) > _SHOWN else lines)


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


# -- the functions of this package as methods of a worker and a session -----------------------------------------------

_NOW = timedelta(0)
S = TypeVar("S", bound=AnySession)
A = TypeVar("A", bound="AnyAsyncSession")


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

    def assert_enqueued(
        self, what: type[T] | _Enqueues[T], /, *where: Where, count: int | None = None, **values: object
    ) -> list[T]:
        """Assert that matching tasks are waiting, see :func:`sqlqueue.testing.assert_enqueued`."""
        __tracebackhide__ = True
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

    async def assert_enqueued(
        self, what: type[T] | _Enqueues[T], /, *where: Where, count: int | None = None, **values: object
    ) -> list[T]:
        """Assert that matching tasks are waiting, see :func:`sqlqueue.testing.assert_enqueued`."""
        __tracebackhide__ = True
        return await assert_enqueued(self.session, what, *where, count=count, **values)
