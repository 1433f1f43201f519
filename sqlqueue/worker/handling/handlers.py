"""Handlers as values: what was registered with a worker, and its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from ..._support.checks import count, duration
from ..._support.errors import ArgumentError
from ...functions.arguments import is_session
from ...model.declaration import QueueMixin
from ...queue.spec import QueueSpec, Where, spec_of
from ...sql.selection import given, terms_of

Mode = Literal["lease", "lock", "at-most-once"]
Isolation = Literal["process"]
DEFAULT_BATCH = 500
"""The maximum number of tasks that one claim takes by default.  A claim costs about a millisecond, whatever it
finds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """A function and the tasks it handles."""

    function: Callable[..., Any]
    entity: type[QueueMixin]
    spec: QueueSpec
    where: tuple[Where, ...]
    concurrency: int
    timeout: timedelta | None
    lease: timedelta
    batch: int
    mode: Mode
    takes_session: bool
    is_coroutine: bool
    options: tuple[ExecutableOption, ...] = ()
    """Loader options for its tasks."""
    isolation: Isolation | None = None
    max_tasks: int | None = None
    """The number of tasks after which a child process is replaced."""
    max_memory: int | None = None
    """The memory in MiB beyond which a child process is replaced."""
    functions: tuple[str, ...] | None = None
    """The names of the functions that it calls; ``None`` unless it serves functions."""
    fetcher: Callable[[Handler, Any], Any] | None = None
    """Creates the fetcher that claims tasks for the handler, unless the mode determines it."""

    @property
    def name(self) -> str:
        """The module and qualified name of the function, for log lines."""
        return f"{self.function.__module__}.{name_of(self.function)}"

    @property
    def can_be_stopped(self) -> bool:
        """Whether a call ends at the timeout; a thread cannot be stopped."""
        return self.is_coroutine or self.isolation is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a worker."""

    name: str | None
    poll: timedelta
    grace: timedelta
    notify: bool


def handled_specs(handlers: Iterable[Handler]) -> list[QueueSpec]:
    """Return the queues of the handlers, each once."""
    return list(dict.fromkeys(handler.spec for handler in handlers))


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function; of a partial or a callable object, the name of what it wraps or its class."""
    wrapped = getattr(function, "func", function)
    return str(getattr(wrapped, "__qualname__", type(wrapped).__qualname__))


def handler_of(
    function: Callable[..., Any],
    entity: type[QueueMixin],
    where: tuple[Where, ...],
    *,
    concurrency: int,
    timeout: timedelta | None,
    lease: timedelta | None,
    batch: int | None,
    mode: Mode,
    options: Sequence[ExecutableOption] = (),
    isolation: Isolation | None = None,
    max_tasks: int | None = None,
    max_memory: int | None = None,
) -> Handler:
    """Return a checked handler.  Raises :class:`.ArgumentError` for invalid arguments."""
    spec = spec_of(entity)
    if not isinstance(options, Sequence):
        raise ArgumentError(f"options={options!r}: give a sequence of loader options")
    _check_stages(spec, where)
    takes_session = _takes_session(function, entity)
    _check_mode(mode, spec, takes_session=takes_session)
    _check_isolation(isolation, mode, max_tasks, max_memory)
    return Handler(
        function=function,
        entity=entity,
        spec=spec,
        where=where,
        concurrency=count("concurrency", concurrency),
        timeout=None if timeout is None else duration("timeout", timeout),
        lease=spec.options.lease if lease is None else duration("lease", lease),
        batch=concurrency if batch is None else count("batch", batch),
        mode=mode,
        takes_session=takes_session,
        is_coroutine=is_coroutine(function),
        options=tuple(options),
        isolation=isolation,
        max_tasks=max_tasks,
        max_memory=max_memory,
    )


def _check_stages(spec: QueueSpec, where: Sequence[Where]) -> None:
    """Raise :class:`.ArgumentError` for criteria that name a stage that does not exist."""
    if "stage" not in spec.columns:
        return
    stage, stages = spec["stage"], spec.options.stages
    for term in terms_of(spec, where):
        unknown = [value for value in given(term, stage) if value not in stages]
        if unknown:
            raise ArgumentError(
                f"{spec.entity.__name__} has no stage {unknown[0]!r}: its stages are {', '.join(stages)}"
            )


def _check_mode(mode: Mode, spec: QueueSpec, *, takes_session: bool) -> None:
    if mode not in get_args(Mode):
        raise ArgumentError(f"mode={mode!r}: give one of {', '.join(map(repr, get_args(Mode)))}")
    if mode == "lock" and not takes_session:
        raise ArgumentError("mode='lock' is one transaction from claim to completion: the handler must take a session")
    if mode == "at-most-once" and takes_session:
        raise ArgumentError(
            "mode='at-most-once' completes a task before its handler is called, which has no transaction to share:"
            " the handler must take only the task"
        )
    if mode == "at-most-once" and spec.is_limited:
        raise ArgumentError(
            f"mode='at-most-once' completes a task before its handler is called, which frees its slot: the"
            f" limits of {spec.entity.__name__} would have no effect"
        )


def _check_isolation(isolation: object, mode: Mode, max_tasks: int | None, max_memory: int | None) -> None:
    if isolation not in (None, *get_args(Isolation)):
        raise ArgumentError(f"isolation={isolation!r}: give 'process' or None")
    if isolation is not None and mode == "lock":
        raise ArgumentError("mode='lock' is one transaction of the worker, which a child process cannot share")
    for name, value in (("max_tasks", max_tasks), ("max_memory", max_memory)):
        if value is not None and isolation is None:
            raise ArgumentError(
                f"{name}={count(name, value)}: it applies to child processes: give isolation='process' too"
            )
        if value is not None:
            count(name, value)


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether calling ``function`` returns a coroutine; callable objects count."""
    plain = inspect.unwrap(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def _takes_session(function: Callable[..., Any], entity: type[QueueMixin]) -> bool:
    if not callable(function):
        raise ArgumentError(f"{function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentError(f"{function!r} is a generator, and calling it does nothing: remove the yield")
    given = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty and each.kind not in variable
    ]
    if len(parameters) not in (1, 2) or any(each.kind not in given for each in parameters):
        raise ArgumentError(f"a handler takes (task) or (session, task), not {inspect.signature(function)}")
    *sessions, task = parameters
    if is_session(task) or any(_is_task(each, entity) for each in sessions):
        shown = f"{name_of(function)}{inspect.signature(function)}"
        raise ArgumentError(f"{shown}: a handler takes (task) or (session, task), in this order")
    if any(_is_of_other_kind(each, is_async=is_coroutine(function)) for each in sessions):
        needed = "coroutine function gets an AsyncSession" if is_coroutine(function) else "function gets a Session"
        raise ArgumentError(f"{name_of(function)}{inspect.signature(function)}: a {needed}, not the other kind")
    return bool(sessions)


def _is_of_other_kind(parameter: inspect.Parameter, *, is_async: bool) -> bool:
    """Return whether the annotation, which may be a string, is certainly a session of the other kind."""
    kind = parameter.annotation
    if isinstance(kind, str):
        name = kind.rpartition(".")[2]
        return name in (("Session", "QueueSession") if is_async else ("AsyncSession", "AsyncQueueSession"))
    if not isinstance(kind, type):
        return False
    return issubclass(kind, Session) if is_async else hasattr(kind, "sync_session_class")


def _is_task(parameter: inspect.Parameter, entity: type[QueueMixin]) -> bool:
    """Return whether the annotation, which may be a string, names the model."""
    kind = parameter.annotation
    return kind == entity.__name__ or (isinstance(kind, type) and issubclass(kind, QueueMixin))
