"""Handlers: their options, their registration, and how another process finds them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeVar, get_args, overload

from sqlalchemy.orm import QueryableAttribute, Session
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import at_once, count, duration
from .._support.errors import ArgumentError
from ..functions import Functions, TaskFunction
from ..functions.arguments import is_session
from ..model.declaration import QueueMixin
from ..queue.spec import QueueSpec, Where, spec_of
from ..sql import given, terms_of

# -- handlers as values: what was registered with a worker, and its settings ------------------------------------------

Mode = Literal["lease", "lock", "at-most-once"]
Isolation = Literal["process"]
CONCURRENCY = 10
"""How many calls of a handler run at a time by default."""
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
    takes_session: bool
    takes_steps: bool
    """Whether it takes durable steps instead of a session."""
    is_coroutine: bool
    concurrency: int = CONCURRENCY
    timeout: timedelta | None = None
    lease: timedelta
    batch: int = DEFAULT_BATCH
    mode: Mode = "lease"
    chunk: int | None = None
    """The maximum number of tasks in one call, which gets a list; ``None`` for calls with one task itself."""
    chunk_wait: timedelta = timedelta(0)
    """How long a call with fewer tasks waits for more."""
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
    lease: timedelta | None = None,
    options: Sequence[ExecutableOption] = (),
    **others: Any,
) -> Handler:
    """Return a checked handler; ``others`` are fields of it.  Raises :class:`.ArgumentError` for invalid arguments."""
    spec = spec_of(entity)
    if not isinstance(options, Sequence):
        raise ArgumentError(f"options={options!r}: give a sequence of loader options")
    _check_stages(spec, where)
    takes_session, takes_steps = _takes_session(function, entity), _takes_steps(function)
    handler = Handler(
        function=function,
        entity=entity,
        spec=spec,
        where=where,
        takes_session=takes_session and not takes_steps,
        takes_steps=takes_steps,
        is_coroutine=is_coroutine(function),
        lease=spec.options.lease if lease is None else duration("lease", lease),
        options=tuple(options),
        **others,
    )
    _check_steps(handler)
    _check_chunk(handler)
    _check_mode(handler)
    _check_isolation(handler)
    count("concurrency", handler.concurrency)
    count("batch", handler.batch)
    if handler.timeout is not None:
        duration("timeout", handler.timeout)
    return handler


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


def _check_steps(handler: Handler) -> None:
    if not handler.takes_steps:
        return
    if not handler.spec.has_steps:
        model = handler.entity.__name__
        raise ArgumentError(f"{handler.name} takes steps, which {model} cannot keep: derive it from StepMixin")
    if handler.mode != "lease" or handler.chunk is not None:
        other = f"mode={handler.mode!r}" if handler.mode != "lease" else "chunk="
        raise ArgumentError(f"{handler.name} takes steps, each of which is committed: {other} is for one transaction")


def _check_chunk(handler: Handler) -> None:
    chunk = handler.chunk
    if chunk is None:
        if handler.chunk_wait:
            raise ArgumentError(
                f"chunk_wait={handler.chunk_wait!r}: it applies to calls with several tasks: give chunk too"
            )
        return
    at_once("chunk", chunk)
    duration("chunk_wait", handler.chunk_wait, zero=True)
    if not handler.takes_session:
        raise ArgumentError("chunk= settles several tasks in one transaction: the handler must take (session, tasks)")
    if _is_task(_parameters(handler.function)[-1], handler.entity):
        model = handler.entity.__name__
        raise ArgumentError(f"{handler.name}: with chunk=, it gets a list: annotate list[{model}], not {model}")
    if handler.mode != "lease" or handler.isolation is not None:
        other = f"mode={handler.mode!r}" if handler.mode != "lease" else f"isolation={handler.isolation!r}"
        raise ArgumentError(f"chunk= cannot be combined with {other}, which handles one task at a time")


def _check_mode(handler: Handler) -> None:
    mode, takes_session = handler.mode, handler.takes_session
    if mode not in get_args(Mode):
        raise ArgumentError(f"mode={mode!r}: give one of {', '.join(map(repr, get_args(Mode)))}")
    if mode == "lock" and not takes_session:
        raise ArgumentError("mode='lock' is one transaction from claim to completion: the handler must take a session")
    if mode == "lock" and handler.spec.has_progress:
        raise ArgumentError(
            f"mode='lock' is one transaction, whose row nothing else can write before it commits: for the progress of"
            f" {handler.entity.__name__}, choose mode='lease'"
        )
    if mode == "at-most-once" and handler.spec.has_progress:
        raise ArgumentError(
            f"mode='at-most-once' completes a task before its handler is called, which can report nothing: for the"
            f" progress of {handler.entity.__name__}, choose mode='lease'"
        )
    if mode == "at-most-once" and takes_session:
        raise ArgumentError(
            "mode='at-most-once' completes a task before its handler is called, which has no transaction to share:"
            " the handler must take only the task"
        )
    if mode == "at-most-once" and handler.spec.is_limited:
        raise ArgumentError(
            f"mode='at-most-once' completes a task before its handler is called, which frees its slot: the"
            f" limits of {handler.entity.__name__} would have no effect"
        )
    if mode == "at-most-once" and handler.spec.sequence is not None:
        raise ArgumentError(
            f"mode='at-most-once' completes a task before its handler is called, and the next task of its key could"
            f" start at once: {handler.entity.__name__} would not keep its order"
        )


def _check_isolation(handler: Handler) -> None:
    isolation: object = handler.isolation
    if isolation not in (None, *get_args(Isolation)):
        raise ArgumentError(f"isolation={isolation!r}: give 'process' or None")
    if isolation is not None and handler.mode == "lock":
        raise ArgumentError("mode='lock' is one transaction of the worker, which a child process cannot share")
    for name, value in (("max_tasks", handler.max_tasks), ("max_memory", handler.max_memory)):
        if value is not None and count(name, value) and isolation is None:
            raise ArgumentError(f"{name}={value}: it applies to child processes: give isolation='process' too")


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether calling ``function`` returns a coroutine; callable objects count."""
    plain = inspect.unwrap(function)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


def _takes_session(function: Callable[..., Any], entity: type[QueueMixin]) -> bool:
    if not callable(function):
        raise ArgumentError(f"{function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentError(f"{function!r} is a generator, and calling it does nothing: remove the yield")
    parameters = _parameters(function)
    *sessions, task = parameters
    if is_session(task) or any(_is_task(each, entity) for each in sessions):
        shown = f"{name_of(function)}{inspect.signature(function)}"
        raise ArgumentError(f"{shown}: a handler takes (task) or (session, task), in this order")
    if any(_is_of_other_kind(each, is_async=is_coroutine(function)) for each in sessions):
        needed = "coroutine function gets an AsyncSession" if is_coroutine(function) else "function gets a Session"
        raise ArgumentError(f"{name_of(function)}{inspect.signature(function)}: a {needed}, not the other kind")
    return bool(sessions)


def _takes_steps(function: Callable[..., Any]) -> bool:
    """Return whether the first of two parameters takes steps, by its name or annotation, which may be a string."""
    first, *others = _parameters(function)
    kind = first.annotation
    name = kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")
    needed = "AsyncSteps" if is_coroutine(function) else "Steps"
    if others and name in ("Steps", "AsyncSteps") and name != needed:
        shown = f"{name_of(function)}{inspect.signature(function)}"
        raise ArgumentError(f"{shown}: a {'coroutine ' * is_coroutine(function)}function gets {needed}, not {name}")
    return bool(others) and (name == needed or first.name == "steps")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the one or two parameters that a call must provide."""
    given = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty and each.kind not in variable
    ]
    if len(parameters) not in (1, 2) or any(each.kind not in given for each in parameters):
        raise ArgumentError(f"a handler takes (task) or (session, task), not {inspect.signature(function)}")
    return parameters


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


# -- the handler that serves all functions registered as tasks of one model -------------------------------------------


class FunctionTasks:
    """Collects the functions of one model and makes their common handler."""

    def __init__(self, entity: type[Any]) -> None:
        self._entity = entity
        self._functions: Functions[Any] = Functions(entity)
        self._settings: dict[str, Any] = {}
        self.handler: Handler | None = None

    def add(self, task: Any, given: Mapping[str, Any]) -> Handler:
        """Add a task.  Returns the handler for it and those added before."""
        functions, given = self._functions, {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if self._settings.get(name, value) != value:
                raise ArgumentError(
                    f"{name}={value!r}: it is {self._settings[name]!r} for all tasks of {self._entity.__name__}, which"
                    " share one handler. Set it once, or give this task its own model"
                )
        functions.add(task)
        self._settings |= given
        function = functions.perform_in_session if functions.takes_session else functions.perform
        handler = handler_of(function, self._entity, (functions.calls,), **self._settings)
        self.handler = replace(handler, is_coroutine=functions.is_coroutine, functions=functions.names)
        return self.handler


# -- the handlers registered with a worker, and the checks that each must pass ----------------------------------------

S = TypeVar("S")
R = TypeVar("R")
Task = TypeVar("Task")


class Register(Protocol[Task]):
    """A decorator that registers a handler and returns it unchanged."""

    @overload
    def __call__(self, function: Callable[[Task], R], /) -> Callable[[Task], R]: ...
    @overload
    def __call__(self, function: Callable[[S, Task], R], /) -> Callable[[S, Task], R]: ...
    @overload
    def __call__(self, function: Callable[[S, list[Task]], R], /) -> Callable[[S, list[Task]], R]: ...


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
        takes_steps = isinstance(handler, Handler) and handler.takes_steps
        if (handler.takes_session or takes_steps) and handler.is_coroutine != self._is_async:
            kinds = ("coroutine", "an async_sessionmaker") if handler.is_coroutine else ("function", "a sessionmaker")
            what = "steps" if takes_steps else "a session"
            raise ArgumentError(f"{handler.name}: a {kinds[0]} that takes {what} needs a worker of {kinds[1]}")
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


# -- where child processes find a worker and its handlers -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a handler among those of an importable worker."""

    origin: str
    """The worker, as ``module:attribute``."""
    number: int
    """The position of the handler."""
    name: str
    """The name of the function and of the model, for a check."""


def origin_of(worker: object) -> str | None:
    """Return the global variable that holds ``worker`` as ``module:attribute``, or ``None`` if there is none."""
    for module_name, module in sys.modules.copy().items():  # other threads may be importing
        for name, value in tuple(getattr(module, "__dict__", {}).items()):
            if value is worker:
                return f"{module_name}:{name}"
    return None


def is_importable(origin: str) -> bool:
    """Return whether child processes can find the worker at ``origin``: the main program is different in each."""
    return not origin.startswith("__m")


def place_of(handler: Handler, handlers: Sequence[Handler], origin: str) -> Place:
    """Return the place of ``handler`` among ``handlers``, by which a child process finds it."""
    return Place(origin, handlers.index(handler), _name(handler))


def load(place: Place) -> tuple[Any, Handler]:
    """Import a worker; return it and the handler at ``place``.  Raises :class:`.ArgumentError` if it is not there."""
    module_name, _, path = place.origin.partition(":")
    worker: Any = reduce(getattr, path.split("."), import_module(module_name))
    if place.number >= len(worker.handlers) or _name(worker.handlers[place.number]) != place.name:
        raise ArgumentError(
            f"{place.origin} has no handler {place.name} at position {place.number + 1} where it is imported again:"
            " register handlers at the top level of modules, always in the same order"
        )
    return worker, worker.handlers[place.number]


def _name(handler: Handler) -> str:
    return f"{name_of(handler.function)} of {handler.entity.__name__}"
