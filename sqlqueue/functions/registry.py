"""The registered functions of one model, which its rows call."""

from __future__ import annotations

from typing import Any, Generic

from .._support.exc import ArgumentError, HandlerNotFoundError
from ..queue.spec import Where, spec_of
from .task import J, TaskFunction

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
