"""Functions whose calls can be enqueued, and the registry in which a handler finds them."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from sqlalchemy.orm import Session, scoped_session

from .. import operations
from .._support.checks import duration, key
from .._support.errors import ArgumentError, HandlerNotFoundError
from ..kinds.columns import LONGEST_TASK, JobMixin, expiry
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql import aware, utcnow
from .arguments import arguments_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session


# -- a function whose calls can be enqueued ---------------------------------------------------------------------------

Call = ParamSpec("Call")
P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobMixin)
A = TypeVar("A", bound="Session | AsyncSession")


class TaskFunction(Generic[Call, P, R, J]):
    """A function whose calls can be enqueued as rows of a model, and which can still be called directly.

    Created by :meth:`.Worker.task`.
    """

    def __init__(self, function: Callable[Call, R], entity: type[J], name: str | None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.entity = entity
        self.name = _name_of(function) if name is None else _checked_name(name)
        """The name stored in rows.  After a change, no worker can run rows with the old name."""
        self.is_coroutine = any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function))))
        self._spec = _job_spec(entity)
        self._arguments = arguments_of(function, self.name)
        self._stored = self._spec.attributes["arguments"]
        self._values: Mapping[str, Any] = {}

    def __call__(self, *args: Call.args, **kwargs: Call.kwargs) -> R:
        """Call the function directly, and return its result."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}{self._arguments.signature}>"

    @property
    def takes_session(self) -> bool:
        """Whether the function's first parameter is a session."""
        return self._arguments.takes_session

    @overload
    def enqueue(self, session: Session | scoped_session[Any], /, *args: P.args, **kwargs: P.kwargs) -> J: ...
    @overload
    def enqueue(
        self, session: AsyncSession | async_scoped_session[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, J]: ...
    def enqueue(self, session: Any, /, *args: P.args, **kwargs: P.kwargs) -> J | Coroutine[Any, Any, J]:
        """Insert a row for a call with these arguments in the session's transaction, and return it, persistent.

        With an asyncio session, await the result.  If the function takes a session, leave it out: the worker passes
        its own.

        Raises :class:`.ArgumentError`, before any statement is sent, for arguments that the function does not take or
        that cannot be stored as JSON.
        """
        if hasattr(session, "run_sync"):
            return self._enqueue_async(session, self.job(*args, **kwargs))
        if not isinstance(session, (Session, scoped_session)):
            raise ArgumentError(
                f"{self.name}: give the session first, as in enqueue(session, ...): {type(session).__name__} is none"
            )
        job = self.job(*args, **kwargs)
        operations.enqueue(session, job)
        return job

    async def _enqueue_async(self, session: AsyncSession, job: J) -> J:
        await session.run_sync(operations.enqueue, job)
        return job

    def job(self, *args: P.args, **kwargs: P.kwargs) -> J:
        """Return a new row for a call with these arguments, to be added to a session or enqueued with others.

        Raises :class:`.ArgumentError` as :meth:`enqueue` does.
        """
        names = self._spec.attributes
        given = {names["task"]: self.name, self._stored: self._arguments.store(args, kwargs)}
        return self.entity(**given, **self._values)

    def job_from(self, arguments: object) -> J:
        """Return a new row for a call with ``arguments``, a JSON object by parameter name, as rows store them.

        Raises :class:`.ArgumentError` if they do not fit the function's parameters.
        """
        self._arguments.restore(arguments)
        return self.entity(**{self._spec.attributes["task"]: self.name, self._stored: arguments}, **self._values)

    def options(
        self,
        *,
        priority: int | None = None,
        available_at: datetime | None = None,
        delay: timedelta | None = None,
        expires: timedelta | None = None,
        **values: Any,
    ) -> Self:
        """Return a copy of this task that enqueues with these values: ``send.options(priority=-1).enqueue(...)``.

        ``available_at``: the earliest start.  ``delay``: the minimum time between the insertion and the start, by the
        database's clock.  ``expires``: the time from the insertion within which it has to be started, see
        :class:`.ExpiryMixin`.  ``values``: values of other columns, by attribute name (``topic="billing"``).

        Raises :class:`.ArgumentError` for both ``available_at`` and ``delay``, a negative delay, ``expires`` for a
        model without that mixin, and unknown columns.
        """
        if available_at is not None and delay is not None:
            raise ArgumentError("available_at and delay are both given: give one of them")
        when = available_at if delay is None else utcnow(duration("delay", delay, zero=True))
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise ArgumentError(f"priority={priority!r}: give an integer; the smallest runs first")
        if available_at is not None:
            aware(available_at)
        names = self._spec.attributes
        given = {names["priority"]: priority, names["available_at"]: when}
        if expires is not None:
            given |= expiry(self._spec, expires, delay)
        refused = sorted(name for name in values if not self._is_free(name))
        if refused:
            raise ArgumentError(f"{', '.join(refused)}: not a column of {self.entity.__name__} that a call may set")
        task = copy.copy(self)
        task._values = {**self._values, **values, **{name: value for name, value in given.items() if value is not None}}
        return task

    def _is_free(self, name: str) -> bool:
        taken = (self._spec.attributes[role] for role in ("task", "arguments"))
        return name in self._spec.mapper.attrs and name not in taken

    def arguments_of(self, job: J) -> dict[str, Any]:
        """Return the arguments of a row's call, and the defaults of the others, by parameter name.

        Raises :class:`.ArgumentError` if they do not fit the function's current parameters.
        """
        return self._arguments.restore(getattr(job, self._stored))

    def perform(self, job: J, *session: Any) -> R:
        """Call the function with a row's arguments, and with the session if it takes one.  Raises what
        :meth:`arguments_of` raises."""
        args, kwargs = self._arguments.spread(self.arguments_of(job))
        call: Callable[..., R] = self.function
        return call(*(session if self.takes_session else ()), *args, **kwargs)


class RegisterTask(Protocol[J]):
    """A decorator that turns a function into a task, see :meth:`.Worker.task`."""

    @overload
    def __call__(self, function: Callable[Concatenate[A, P], R], /) -> TaskFunction[Concatenate[A, P], P, R, J]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, P, R, J]: ...


def _job_spec(entity: type[Any]) -> QueueSpec:
    spec = spec_of(entity)
    if "arguments" in spec.attributes:
        return spec
    raise ArgumentError(f"{entity.__name__} has no columns for function calls: derive it from sqlqueue.JobMixin")


def _name_of(function: Any) -> str:
    if not callable(function):
        raise ArgumentError(f"{function!r} is not a function")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or "<lambda>" in name:
        raise ArgumentError(f"{function!r} has no name: give one, as in worker.task(Job, name='send')")
    return _checked_name(f"{module}.{name}")


def _checked_name(name: object) -> str:
    return key("name", name, LONGEST_TASK)


# -- the registered functions of one model, which its rows call -------------------------------------------------------

AnyTask = TaskFunction[..., ..., Any, J]


class Functions(Generic[J]):
    """The task functions of a model by name, either all plain or all coroutine functions: one handler calls them."""

    def __init__(self, entity: type[J]) -> None:
        self.entity = entity
        self.takes_session = False
        """Whether any of the functions takes a session."""
        self._tasks: dict[str, AnyTask[J]] = {}
        self._column = spec_of(entity).attributes["task"]

    def add(self, task: AnyTask[J]) -> None:
        """Register ``task``.  Raises :class:`.ArgumentError` if its name is taken or it is a function of the other
        kind."""
        if task.name in self._tasks:
            raise ArgumentError(f"a task {task.name!r} already exists: give one of them another name with name='...'")
        if any(each.is_coroutine != task.is_coroutine for each in self._tasks.values()):
            kinds = (
                ("a coroutine function", "functions") if task.is_coroutine else ("a function", "coroutine functions")
            )
            raise ArgumentError(
                f"{task.name} is {kinds[0]}, but the other tasks of {self.entity.__name__} are {kinds[1]}: one handler"
                " calls all of them. Give it a separate model"
            )
        self._tasks[task.name] = task
        self.takes_session = self.takes_session or task.takes_session

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions, sorted."""
        return tuple(sorted(self._tasks))

    @property
    def calls(self) -> Where:
        """The criterion for the rows that call one of the functions."""
        column: Where = getattr(self.entity, self._column).in_(self.names)
        return column

    @property
    def is_coroutine(self) -> bool:
        """Whether the functions are coroutine functions."""
        return any(task.is_coroutine for task in self._tasks.values())

    def perform(self, job: J) -> Any:
        """Call the function of ``job`` and return its result, an awaitable for a coroutine function.

        Raises :class:`.HandlerNotFoundError` for an unknown function, which happens if a child process has loaded
        different code, and :class:`.ArgumentError` if its arguments do not fit.  These are ordinary failures, since
        another worker may have the version of the function for which the call was enqueued.
        """
        return self._task(job).perform(job)

    def perform_in_session(self, session: Any, job: J) -> Any:
        """Call the function of ``job`` like :meth:`perform`, with ``session`` if it takes one."""
        return self._task(job).perform(job, session)

    def _task(self, job: J) -> AnyTask[J]:
        name = getattr(job, self._column)
        task = self._tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self._tasks))
            raise HandlerNotFoundError(
                f"this worker has no task {name!r}; the tasks of {self.entity.__name__} are {known}", name=name
            )
        return task
