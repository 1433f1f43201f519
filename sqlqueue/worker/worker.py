"""The worker: registers handlers, claims tasks and calls the handlers until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.sql.base import ExecutableOption

from .._support import checks
from .._support.checks import duration
from .._support.errors import ArgumentError, HandlerNotFoundError, IllegalTransitionError, SQLQueueError
from .._support.texts import ALL_FRAMES
from ..functions import RegisterTask, TaskFunction
from ..functions.functions import J
from ..model.declaration import LONGEST_NAME, T
from ..queue.spec import Where
from .database import Sessions, database_of
from .handlers import (
    DEFAULT_BATCH,
    Handler,
    Isolation,
    Mode,
    Place,
    Register,
    RegisteredHandlers,
    Settings,
    check_model,
    handler_of,
    origin_of,
    place_of,
)
from .reports import Health, logger, make_reports
from .run import UNSUPERVISED, WorkerRun, handling_signals
from .threads import DaemonThreads, cancel_others

THREADS = 32
"""Threads for calls of ``asyncio.to_thread`` in coroutine handlers."""


class Worker:
    """Claims tasks and calls handlers until it is stopped.  Survives database outages and errors in handlers.

    - ``sessions``: the application's ``sessionmaker`` or ``async_sessionmaker``, for sessions of any class.
    - ``name``: stored in ``claimed_by`` of the tasks it claims; ``host:pid`` by default.
    - ``poll``: the longest time between two queries for work when no notification arrives; 3 seconds by default.
    - ``grace``: how long a stopping worker waits for running handlers; 30 seconds by default.
    - ``notify``: whether to listen for notifications on engines that have them, true by default. LISTEN does not work
      through a pooler in transaction mode.
    - ``version``: the application's version, for the register of workers, see :class:`.WorkerMixin`.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        name: str | None = None,
        poll: timedelta = timedelta(seconds=3),
        grace: timedelta = timedelta(seconds=30),
        notify: bool = True,
        version: str | None = None,
    ) -> None:
        self.sessions = sessions
        self._reports = make_reports()
        self._database = database_of(sessions, self._reports.liveness)
        if name is not None:
            checks.name("name", name, LONGEST_NAME)
        if version is not None:
            checks.name("version", version, LONGEST_NAME)
        self.version = version
        """The version of the application, for the register of workers."""
        self._settings = Settings(
            name=name, poll=duration("poll", poll), grace=duration("grace", grace, zero=True), notify=notify
        )
        self._registered = RegisteredHandlers(is_async=self._database.is_async)
        self._supervision = UNSUPERVISED  # set in a process of a supervisor
        self._only: Collection[str] | None = None  # set by the command line: the names of the queues to serve
        self._run: WorkerRun | None = None
        self._stop_first = self._has_run = False
        self.origin: str | None = None
        """Where child processes import it from, as ``module:attribute``; looked up at its start if not set."""
        self._last_run: WorkerRun | None = None

    @property
    def handlers(self) -> list[Handler]:
        """The registered handlers, in the order in which child processes find them."""
        return self._registered.handlers

    def handler(
        self,
        entity: type[T],
        *where: Where,
        concurrency: int = 10,
        timeout: timedelta | None = None,
        lease: timedelta | None = None,
        batch: int = DEFAULT_BATCH,
        chunk: int | None = None,
        chunk_wait: timedelta = timedelta(0),
        mode: Mode = "lease",
        options: Sequence[ExecutableOption] = (),
        isolation: Isolation | None = None,
        max_tasks: int | None = None,
        max_memory: int | None = None,
    ) -> Register[T]:
        """Register a function or coroutine function for the tasks of ``entity`` that satisfy ``where``.

        A handler ``(session, task)`` writes through the session; its writes and the completion of the task are one
        commit, attempted at least once and effective exactly once.  Each call gets a new session from ``sessions``.
        A handler ``(task)`` gets a detached task with its columns loaded; the task is completed afterwards, in a batch
        with others.  So is that of a handler ``(steps, task)``, which runs in durable :class:`.Steps`, or as a
        coroutine in :class:`.AsyncSteps`.

        An exception rolls back the handler's writes and is recorded: the task is retried after the model's backoff and
        discarded after its last attempt.  A handler raises :class:`.Retry`, :class:`.Snooze`, :class:`.Discard` or
        :class:`.Cancel` to choose another outcome.  A transaction that loses a deadlock or fails to serialize is run
        again at once, without counting an attempt.

        - ``concurrency``: how many calls run at a time, 10 by default; functions in threads, coroutines on the event
          loop.
        - ``timeout``: how long a call may run, unlimited by default. A coroutine is then cancelled and its attempt
          fails; for a function in a thread it is only logged, see ``isolation``.
        - ``lease``: the model's by default; extended as long as the worker lives.
        - ``batch``: the maximum number of tasks in one claim; the longer tasks run, the fewer are claimed ahead. Those
          claimed ahead are released when no call ends for a second, since another worker may be idle.
        - ``chunk``: the handler takes ``(session, tasks)``, a list of up to this many tasks, in the order of their
          claims, and one commit settles them all. They are completed, except those that it has settled itself, and
          those for which it returns an exception, in a mapping by task. If the call raises, nothing that it wrote is
          kept, and it is repeated with each half of the tasks, until the failing one is alone: only that one has used
          an attempt. One task to a call by default.
        - ``chunk_wait``: how long a call with fewer tasks than ``chunk`` waits for more; not at all by default.
        - ``mode``: ``"lease"``, the default; ``"lock"`` holds the task by its row lock, in one transaction from claim
          to completion, without a lease; ``"at-most-once"`` completes the task before the handler is called.
        - ``options``: loader options with which each task is loaded. A detached task has no other relationships.
        - ``isolation``: ``"process"`` calls the handler in child processes, one for each call that runs at a time. They
          import the worker, which must be a global variable of a module. A call that exceeds ``timeout`` is killed, and
          its attempt fails with :class:`TimeoutError`; a child that dies fails only its own task, with
          :class:`.ProcessDiedError`.
        - ``max_tasks``, ``max_memory``: how many tasks a child runs, and how much memory in MiB it may use after one,
          before it is replaced; unlimited by default.

        Raises :class:`.ArgumentError` for invalid arguments, and if another function of this worker is registered for
        the same tasks: for equal criteria, or for criteria that include these.
        """
        check_model("handler", entity)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            handler = handler_of(
                function,
                entity,
                where,
                concurrency=concurrency,
                timeout=timeout,
                lease=lease,
                batch=batch,
                chunk=chunk,
                chunk_wait=chunk_wait,
                mode=mode,
                options=options,
                isolation=isolation,
                max_tasks=max_tasks,
                max_memory=max_memory,
            )
            self._registered.add(handler)
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
        isolation: Isolation | None = None,
        max_tasks: int | None = None,
        max_memory: int | None = None,
    ) -> RegisterTask[J]:
        """Make a function or coroutine function a task, whose calls can be enqueued as rows of ``entity``.

        The decorated function is still called as before; its ``enqueue(session, *args, **kwargs)`` stores a call.
        Arguments are stored as JSON.  Datetimes, UUIDs, enums and pydantic models need an annotation and the extra
        ``pydantic``, and arrive as the annotated type.  The return value is dropped unless ``entity`` derives from
        :class:`.ResultMixin`; then it is stored as JSON.

        If the first parameter is a session, by its annotation or by the name ``session``, the function gets a session
        with the guarantees of :meth:`handler`.  Exceptions have the effects described there.  Arguments that no longer
        fit fail that one row, which is retried: another worker may run newer code.  Rows of functions that this worker
        has not registered are left unchanged, and do not slow claims down.

        ``name``: identifies the function in rows; ``module.qualname`` by default.  Name functions that may move.
        ``concurrency`` (10), ``timeout``, ``lease``, ``isolation``, ``max_tasks``, ``max_memory``: as for
        :meth:`handler`, with one value for all tasks of ``entity``, which share one handler.  Either all of them are
        functions or all are coroutine functions.

        Raises :class:`.ArgumentError` for invalid arguments and for a name that is taken.
        """
        check_model("task", entity)
        given = {
            "concurrency": concurrency,
            "timeout": timeout,
            "lease": lease,
            "isolation": isolation,
            "max_tasks": max_tasks,
            "max_memory": max_memory,
        }

        def register(function: Callable[..., Any]) -> Any:
            task: TaskFunction[..., ..., Any, J] = TaskFunction(function, entity, name)
            self._registered.add_task(task, given)
            return task

        return register

    def run(self) -> None:
        """Work in the calling thread until SIGTERM, SIGINT or :meth:`stop`.

        The first signal drains the worker: it claims nothing more, waits for running handlers up to ``grace``, and
        releases the other tasks, which are available to other workers at once, without counting an attempt.  A second
        signal does not wait.  Raises what :meth:`serve` raises.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise IllegalTransitionError("run() needs an event loop of its own: in a coroutine, await worker.serve()")
        asyncio.run(self._serve_with_signals())

    async def serve(self) -> None:
        """Work on the running event loop, as :meth:`run` does; the application handles signals itself.

        Cancelling it drains the worker; cancelling it again ends it without waiting, after it has released the tasks
        it holds.

        Raises :class:`.SchemaMismatchError` if the tables do not match the models, and any error that the worker cannot
        recover from.  Both are logged.  Await the task in which this runs, or the application goes on without a worker.
        Raises :class:`.HandlerNotFoundError` without handlers, and :class:`.IllegalTransitionError` if it is already
        running.
        """
        if not self.handlers:
            raise HandlerNotFoundError("the worker has no handlers: register one with @worker.handler(Task)", name="")
        if self._run is not None:
            raise IllegalTransitionError("this worker is already running: create another, or run it in one place only")
        try:
            parts = self._served, self._database, self._reports, self._settings, self._places()
            self._run = WorkerRun(*parts, supervision=self._supervision, version=self.version)
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
            self._last_run, self._run = self._run, None
            self._stop_first, self._has_run = False, True

    @property
    def _served(self) -> list[Handler]:
        """The handlers whose queues this process serves."""
        only = self._only
        return [each for each in self.handlers if only is None or each.spec.name in only]

    def _places(self) -> dict[Handler, Place]:
        """Return where child processes find the handlers; none if they cannot import this worker."""
        self.origin = self.origin or origin_of(self)
        if self.origin is None and any(handler.isolation is not None for handler in self._served):
            raise ArgumentError(
                "isolation='process' needs a worker that child processes can import: make it a global variable of a"
                " module, or set worker.origin = 'module:attribute'"
            )
        return (
            {} if self.origin is None else {each: place_of(each, self.handlers, self.origin) for each in self._served}
        )

    def health(self) -> Health | None:
        """Return the worker's health, or ``None`` unless it runs.  Thread-safe; sends nothing to the database."""
        run = self._run
        return None if run is None else run.health()

    def metrics(self) -> bytes | None:
        """Return the worker's metrics as text for Prometheus, or ``None`` without the extra ``prometheus``.

        Thread-safe; sends nothing to the database.  Queues are counted every 15 seconds while this is called at least
        every two minutes.
        """
        prometheus = self._reports.prometheus
        return None if prometheus is None else prometheus.exposition()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop :meth:`run` or :meth:`serve` as a signal does; with ``at_once`` as a second signal does.  Thread-safe.

        A worker that has never run stops as soon as it starts.  One that has ended can be run again, and a call before
        it does has no effect.
        """
        self._stop_first = not self._has_run  # set before reading _run: the worker may start between the two
        run = self._run
        if run is not None:
            run.stop(at_once=at_once)

    async def _serve_with_signals(self) -> None:
        # the loop's own threads would keep the process alive until the calls of cancelled handlers return
        asyncio.get_running_loop().set_default_executor(DaemonThreads(THREADS, "handlers"))
        with handling_signals(self.stop):
            try:
                await self.serve()
            finally:
                await cancel_others()
                await self._database.dispose({self._database.engine(handler.spec) for handler in self.handlers})
