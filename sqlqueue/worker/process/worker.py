"""The worker: the loop that claims tasks and calls handlers, written once for everybody."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, overload

from sqlalchemy.sql.base import ExecutableOption

from ..._support import checks
from ..._support.checks import duration
from ..._support.exc import ArgumentError, HandlerNotFoundError, IllegalTransitionError, SQLQueueError
from ..._support.logs import ALL_FRAMES
from ...functions import RegisterTask, TaskFunction
from ...functions.task import J
from ...model.columns import LONGEST_NAME
from ...model.mixins import QueueMixin, T
from ...queue.spec import Where, spec_of
from ..concurrency.event_loop import cancel_others
from ..concurrency.threads import DaemonThreads
from ..database import database_of
from ..database.base import Sessions
from ..handling.function_tasks import Tasks
from ..handling.handlers import BATCH, Handler, Mode, Settings, handler_of, overlapping
from ..reporting import make_reports
from ..reporting.health import Health
from ..reporting.reports import logger
from .run import Run

S = TypeVar("S")
R = TypeVar("R")
THREADS = 32
"""For what coroutines do by ``asyncio.to_thread``."""
Task = TypeVar("Task")


class Register(Protocol[Task]):
    """Takes a handler, and returns it as it is."""

    @overload
    def __call__(self, function: Callable[[Task], R], /) -> Callable[[Task], R]: ...
    @overload
    def __call__(self, function: Callable[[S, Task], R], /) -> Callable[[S, Task], R]: ...


class Worker:
    """Claims tasks and calls handlers, until it is stopped.  Survives outages and handler errors.

    ``sessions``: the application's ``sessionmaker`` or ``async_sessionmaker``, of sessions of any class.
    ``name``: by which its claims are known (``claimed_by``); ``host:pid`` if not given.
    ``poll``: the longest time between two looks for work, where nothing tells it.
    ``grace``: how long running handlers are waited for when it stops.
    ``notify``: whether to listen for notifications where the engine has them; it does not work through transaction
    pooling.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        name: str | None = None,
        poll: timedelta = timedelta(seconds=3),
        grace: timedelta = timedelta(seconds=30),
        notify: bool = True,
    ) -> None:
        self.sessions = sessions
        self._database = database_of(sessions)
        if name is not None:
            checks.name("name", name, LONGEST_NAME)
        self._settings = Settings(
            name=name, poll=duration("poll", poll), grace=duration("grace", grace, zero=True), notify=notify
        )
        self.handlers: list[Handler] = []
        self._tasks: dict[type[QueueMixin], Tasks] = {}
        self.reports = make_reports()
        self._run: Run | None = None
        self._stop_first = self._has_run = False
        self.hurried = False
        """Whether its last run was ended at once, so that threads may still be busy with its handlers."""

    def handler(
        self,
        entity: type[T],
        *where: Where,
        concurrency: int = 10,
        timeout: timedelta | None = None,
        lease: timedelta | None = None,
        batch: int = BATCH,
        mode: Mode = "lease",
        options: Sequence[ExecutableOption] = (),
    ) -> Register[T]:
        """Register a function, or a coroutine function, for the tasks of ``entity`` that satisfy ``where``.

        ``(session, task)``: its writes through the session and the completion of the task are one commit, tried at
        least once and effective exactly once.  The session is the worker's, a new one for each call.
        ``(task)``: it is completed afterwards, together with others.  The task is detached, its columns are loaded.

        An exception rolls back what was written and is recorded: the task is retried after the model's backoff, and
        discarded after its last attempt.  :class:`.Retry`, :class:`.Snooze`, :class:`.Discard` and :class:`.Cancel`
        say otherwise.  A transaction that fell victim to a deadlock or a serialization failure is run again at once.

        ``concurrency``: how many run at a time, functions in threads, coroutines on the event loop.
        ``timeout``: a coroutine is cancelled, and has failed; of a thread it is only reported.
        ``lease``: the model's if not given; it is extended while the worker lives.
        ``batch``: how many tasks one claim takes at the most; less the longer they take.
        ``mode``: ``"lock"`` holds the task by its row's lock in one transaction from claim to completion, without a
        lease; ``"at-most-once"`` completes it before the handler is called.
        ``options``: any loader options, with which each task is loaded; a detached one has no other relationships.

        Raises :class:`.ArgumentError` for what makes no sense, and if another function of this worker is registered for
        the same tasks: for equal criteria, or for all of which these are a part.
        """
        _check_model("handler", entity)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            handler = handler_of(
                function,
                entity,
                where,
                concurrency=concurrency,
                timeout=timeout,
                lease=lease,
                batch=batch,
                mode=mode,
                options=options,
            )
            self._check(handler)
            self._refuse_overlap(handler, self.handlers)
            self.handlers.append(handler)
            return function

        return register

    def task(
        self,
        entity: type[J],
        *,
        name: str | None = None,
        concurrency: int | None = None,
        timeout: timedelta | None = None,
        lease: timedelta | None = None,
    ) -> RegisterTask[J]:
        """Make a function, or a coroutine function, a task: its calls can be enqueued as rows of ``entity``.

        What it becomes is called as before, and ``enqueue(session, *args, **kwargs)`` stores a call.  Its arguments
        are JSON; those of other kinds (moments, UUIDs, enumerations, models of pydantic) need an annotation and the
        extra ``pydantic``, and come back as what is annotated.  What it returns is dropped,
        unless ``entity`` derives from :class:`.ResultMixin`: it is JSON then.

        If its first parameter is a session, by its annotation or by the name ``session``, it gets the worker's, with
        the guarantees of :meth:`handler`; all that is said there of exceptions holds too.  A name that this worker
        does not know, and arguments that no longer fit, are failures of that one row and are retried, for another
        worker may be newer.

        ``name``: by which rows know the function, ``module.qualname`` if not given.  Give one to what may be moved.
        ``concurrency`` (10), ``timeout``, ``lease``: as for :meth:`handler`; one value for all tasks of ``entity``,
        which share one handler.  They are all functions or all coroutine functions.
        """
        _check_model("task", entity)

        def register(function: Callable[..., Any]) -> Any:
            task: TaskFunction[..., ..., Any, J] = TaskFunction(function, entity, name)
            self._check(task)
            tasks = self._tasks.setdefault(entity, Tasks(entity))
            before = tasks.handler
            handler = tasks.add(task, concurrency=concurrency, timeout=timeout, lease=lease)
            others = [each for each in self.handlers if each is not before]
            self._refuse_overlap(handler, others)
            self.handlers = [*others, handler]
            return task

        return register

    def _check(self, handler: Handler | TaskFunction[..., ..., Any, Any]) -> None:
        if handler.takes_session and handler.is_coroutine != self._database.is_async:
            kinds = ("coroutine", "an async_sessionmaker") if handler.is_coroutine else ("function", "a sessionmaker")
            raise ArgumentError(f"{handler.name}: a {kinds[0]} that takes a session needs a worker of {kinds[1]}")
        if handler.is_coroutine and find_spec("greenlet") is None:
            raise ArgumentError(
                f"{handler.name}: a coroutine needs greenlet, which is not installed: pip install 'SQLAlchemy[asyncio]'"
            )

    def _refuse_overlap(self, handler: Handler, others: Iterable[Handler]) -> None:
        other = overlapping(handler, others)
        if other is None:
            return
        names = {tasks.handler: f"@worker.task({entity.__name__})" for entity, tasks in self._tasks.items()}
        first, second = (names.get(each, each.name) for each in (other, handler))
        model = handler.entity.__name__
        raise ArgumentError(
            f"{first} and {second} are both registered for the same tasks of {model}, which would go to either by"
            f" chance: give them criteria that exclude each other, as in @worker.handler({model}, {model}.kind == 'a')"
        )

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or :meth:`stop`, in the calling thread.

        The first signal drains: nothing more is claimed, what runs is given the grace period, the rest is released
        (the attempt does not count) and is picked up by others at once.  A second one does not wait.
        """
        asyncio.run(self._serve_with_signals())

    async def serve(self) -> None:
        """:meth:`run` as a part of an application's own event loop, which handles the signals.

        :class:`.SchemaMismatchError`, and whatever else it cannot go on after, is logged and raised: see to it that
        the task in which this runs is awaited, or the application goes on without a worker.
        Cancelled, it drains; cancelled again, it does not wait, but releases what it holds before it ends.
        """
        if not self.handlers:
            raise HandlerNotFoundError("the worker has no handlers: register one with @worker.handler(Task)", name="")
        if self._run is not None:
            raise IllegalTransitionError("this worker runs already: make another, or run it once and in one place")
        try:
            self._run = Run(self.handlers, self._database, self.reports, self._settings)
            if self._stop_first:
                self._run.stop(at_once=False)
            await self._run.serve()
        except SQLQueueError as error:
            logger.error("worker stopped: %s", error)
            raise
        except Exception:
            logger.exception("worker stopped by an unexpected error", extra={ALL_FRAMES: True})
            raise
        finally:
            self.hurried = self._run is not None and self._run.hurries
            self._run, self._stop_first, self._has_run = None, False, True

    def health(self) -> Health | None:
        """How it is, ``None`` unless it runs.  From any thread; asks nothing of the database."""
        run = self._run
        return None if run is None else run.health()

    def stop(self, *, at_once: bool = False) -> None:
        """Let :meth:`run` or :meth:`serve` end, as by a signal; ``at_once`` as by the second.  From any thread.

        One that has never begun ends as soon as it does; one that has ended can be run again.
        """
        self._stop_first = not self._has_run  # before the look: it may begin between the two
        run = self._run
        if run is not None:
            run.stop(at_once=at_once)

    async def _serve_with_signals(self) -> None:
        # the loop's own threads would keep the process, for as long as what a cancelled handler left them to do takes
        asyncio.get_running_loop().set_default_executor(DaemonThreads(THREADS, "handlers"))
        with handling_signals(self.signalled):
            try:
                await self.serve()
            finally:
                await cancel_others()
                await self._database.dispose({self._database.engine(handler.spec) for handler in self.handlers})

    def signalled(self) -> None:
        """SIGTERM or SIGINT has come: the first drains, the next one does not wait."""
        if self._run is None:
            self.stop()
        else:
            self._run.signalled()


def _check_model(decorator: str, entity: object) -> None:
    """A decorator without parentheses is given the function in place of the model."""
    if callable(entity) and not isinstance(entity, type):
        raise ArgumentError(f"@worker.{decorator} needs the model of the tasks: write @worker.{decorator}(Task)")
    spec_of(entity)


@contextmanager
def handling_signals(heard: Callable[[], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda *_: heard())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
