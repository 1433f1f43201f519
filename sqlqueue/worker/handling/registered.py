"""The handlers registered with a worker, and the checks that each must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, overload

from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.sql import ClauseElement

from ..._support.errors import ArgumentError
from ...functions import TaskFunction
from ...model.declaration import QueueMixin
from ...queue.spec import Where, spec_of
from .function_tasks import FunctionTasks
from .handlers import Handler

S = TypeVar("S")
R = TypeVar("R")
Task = TypeVar("Task")


class Register(Protocol[Task]):
    """A decorator that registers a handler and returns it unchanged."""

    @overload
    def __call__(self, function: Callable[[Task], R], /) -> Callable[[Task], R]: ...
    @overload
    def __call__(self, function: Callable[[S, Task], R], /) -> Callable[[S, Task], R]: ...


class RegisteredHandlers:
    """The handlers of one worker; two that certainly share tasks are rejected.

    ``is_async``: whether the worker's sessions come from an ``async_sessionmaker``.
    """

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async
        self._tasks: dict[type[QueueMixin], FunctionTasks] = {}
        self.handlers: list[Handler] = []
        """The handlers in the order of their registration, by which child processes find them."""

    def add(self, handler: Handler) -> None:
        """Add a handler.

        Raises :class:`.ArgumentError` if the worker cannot call it, or another one is registered for the same tasks.
        """
        self._check(handler)
        self._refuse_overlap(handler, self.handlers)
        self.handlers.append(handler)

    def add_task(self, task: TaskFunction[..., ..., Any, Any], given: Mapping[str, Any]) -> None:
        """Add a task to those of its model, which share one handler.  ``given``: settings of that handler, or ``None``.

        Raises :class:`.ArgumentError` as :meth:`add` does, and if the name or the settings conflict with those of
        others.
        """
        self._check(task)
        tasks = self._tasks.setdefault(task.entity, FunctionTasks(task.entity))
        before = tasks.handler
        handler = tasks.add(task, given)
        others = [each for each in self.handlers if each is not before]
        self._refuse_overlap(handler, others)
        self.handlers = [*others, handler]

    def _check(self, handler: Handler | TaskFunction[..., ..., Any, Any]) -> None:
        if handler.takes_session and handler.is_coroutine != self._is_async:
            kinds = ("coroutine", "an async_sessionmaker") if handler.is_coroutine else ("function", "a sessionmaker")
            raise ArgumentError(f"{handler.name}: a {kinds[0]} that takes a session needs a worker of {kinds[1]}")
        if handler.is_coroutine and find_spec("greenlet") is None:
            raise ArgumentError(
                f"{handler.name}: a coroutine needs greenlet, which is not installed: pip install 'SQLAlchemy[asyncio]'"
            )

    def _refuse_overlap(self, handler: Handler, others: Iterable[Handler]) -> None:
        other = _overlapping(handler, others)
        if other is None:
            return
        names = {tasks.handler: f"@worker.task({entity.__name__})" for entity, tasks in self._tasks.items()}
        first, second = (names.get(each, each.name) for each in (other, handler))
        model = handler.entity.__name__
        raise ArgumentError(
            f"{first} and {second} are both registered for the same tasks of {model}, which would go to one of them"
            f" arbitrarily: give them criteria that exclude each other, as in @worker.handler({model}, {model}.kind =="
            " 'a')"
        )


def check_model(decorator: str, entity: object) -> None:
    """Raise :class:`.ArgumentError` for a decorator without parentheses, which gets the function as the model."""
    if callable(entity) and not isinstance(entity, type):
        raise ArgumentError(f"@worker.{decorator} needs the model of the tasks: write @worker.{decorator}(Task)")
    spec_of(entity)


def _overlapping(handler: Handler, others: Iterable[Handler]) -> Handler | None:
    """Return the first of ``others`` that certainly shares tasks with ``handler`` and treats them differently.

    Only equal criteria count: others may exclude each other in ways that cannot be seen here.  A function may be
    registered several times, to reserve threads for urgent tasks.
    """
    for other in others:
        related = issubclass(handler.entity, other.entity) or issubclass(other.entity, handler.entity)
        same = other.entity is handler.entity and _are_equal(handler.where, other.where)
        if same or (related and handler.function is not other.function and _covers(handler, other)):
            return other
    return None


def _covers(one: Handler, other: Handler) -> bool:
    """Return whether one of the two handles all tasks of the other."""
    return any(not a.where and issubclass(b.entity, a.entity) for a, b in ((one, other), (other, one)))


def _are_equal(some: tuple[Where, ...], others: tuple[Where, ...]) -> bool:
    if len(some) != len(others):
        return False
    pairs = ((_clause(a), _clause(b)) for a, b in zip(some, others, strict=True))
    return all(isinstance(a, ClauseElement) and isinstance(b, ClauseElement) and a.compare(b) for a, b in pairs)


def _clause(criterion: Where) -> object:
    return criterion.__clause_element__() if isinstance(criterion, QueryableAttribute) else criterion
