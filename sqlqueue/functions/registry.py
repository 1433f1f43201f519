"""The functions of one model, and how its rows come to them."""

from __future__ import annotations

from typing import Any, Generic

from .._support.exc import ArgumentError, HandlerNotFoundError
from ..queue.spec import spec_of
from .task import J, TaskFunction

AnyTask = TaskFunction[..., ..., Any, J]


class Functions(Generic[J]):
    """Tasks by name.  All of them are functions, or all are coroutine functions: one handler calls them."""

    def __init__(self, entity: type[J]) -> None:
        self.entity = entity
        self.takes_session = False
        """Whether one of them does."""
        self._tasks: dict[str, AnyTask[J]] = {}
        self._column = spec_of(entity).attributes["task"]

    def add(self, task: AnyTask[J]) -> None:
        """:class:`.ArgumentError` for a name that is taken, and for a function of the other kind."""
        if task.name in self._tasks:
            raise ArgumentError(f"there is a task {task.name!r} already: give one of them another name, by name='...'")
        if any(each.is_coroutine != task.is_coroutine for each in self._tasks.values()):
            kinds = (
                ("a coroutine function", "functions") if task.is_coroutine else ("a function", "coroutine functions")
            )
            raise ArgumentError(
                f"{task.name} is {kinds[0]}, the other tasks of {self.entity.__name__} are {kinds[1]}: one handler"
                " calls all of them. Give it a model of its own"
            )
        self._tasks[task.name] = task
        self.takes_session = self.takes_session or task.takes_session

    @property
    def is_coroutine(self) -> bool:
        """Whether the functions are coroutine functions."""
        return any(task.is_coroutine for task in self._tasks.values())

    def perform(self, job: J) -> Any:
        """Call the function of ``job``; what is returned is awaitable if it is a coroutine function.

        :class:`.HandlerNotFoundError` if there is none by its name, :class:`.ArgumentError` if its arguments do not
        fit: failures like others, for another worker may know the function as it was enqueued.
        """
        return self._call(job)

    def perform_in_session(self, session: Any, job: J) -> Any:
        """:meth:`perform`, with ``session`` for the functions that take one."""
        return self._call(job, session)

    def _call(self, job: J, *session: Any) -> Any:
        task = self._task(getattr(job, self._column))
        bound = task.bind(job)
        return task.function(*(session if task.takes_session else ()), *bound.args, **bound.kwargs)

    def _task(self, name: str) -> AnyTask[J]:
        task = self._tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self._tasks))
            raise HandlerNotFoundError(
                f"this worker has no task {name!r}; those of {self.entity.__name__} are {known}", name=name
            )
        return task
