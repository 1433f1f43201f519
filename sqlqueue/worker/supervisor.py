"""The supervisor: starts worker processes, watches them, and replaces those that die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection, parent_process
from typing import Any

from .._support.errors import SQLQueueError
from .._support.processes import CONTEXT, end_soon, exit_text, settle_in, start
from ..operations.upkeep import Crash
from .database import growing_pauses
from .executor import End, crash_of, end_of, has_recovered, note_end, shared_memory, turn_of
from .reports import STALLED, logger
from .run import UNLIMITED, ProcessLimits, Supervision, handling_signals
from .worker import Worker

_PRELOADED = [__name__]
CANNOT_START = 3
"""The exit status of a process that would fail the same way again."""
UNWATCHED = 5.0
"""Seconds between two looks at a process after which this process itself has not run, so that nothing is known."""
LOOK_EVERY = 0.2
"""The maximum of seconds between two looks at the processes."""
SETTLED = 30.0
"""Seconds of life after which a process counts as healthy, so that the pause before its replacement is short again."""
_STALLED_TEXT = "was killed because its event loop had been standing still for {:.0f} s"


def supervise(
    load: Callable[[int], Worker],
    processes: int,
    limits: ProcessLimits = UNLIMITED,
    has_changed: Callable[[], bool] | None = None,
    *,
    replaces_stalled: bool = False,
) -> int:
    """Run ``processes`` worker processes, and return the exit status.

    ``load``, which is pickled, gets the number of a process and returns its worker.  SIGTERM and SIGINT are forwarded,
    including second signals.  A process that dies is replaced after a pause that grows each time, and one that reaches
    ``limits`` stops and is replaced at once.  With ``replaces_stalled``, one whose event loop stands still for 30
    seconds is killed, and replaced as if it had died.  A process that cannot start at all, for example because a table
    is missing, ends them all.

    If ``has_changed`` is given, all processes are stopped as by a first signal, and started anew, whenever it returns
    true; processes that cannot start then wait for the next change.
    """
    supervised = supervised_processes(load, processes, limits)

    stopping = threading.Event()

    def stop(*, at_once: bool = False) -> None:
        stopping.set()
        for each in supervised:
            each.signal(signal.SIGTERM)

    CONTEXT.set_forkserver_preload(_PRELOADED)
    with handling_signals(stop):
        for each in supervised:
            each.start()
        while any(each.is_wanted for each in supervised) or (has_changed is not None and not stopping.is_set()):
            alive = [each.sentinel for each in supervised if each.is_alive]
            connection.wait(alive, timeout=LOOK_EVERY) if alive else stopping.wait(LOOK_EVERY)
            for each in supervised:
                if replaces_stalled:
                    each.kill_if_stalled()
                each.replace_if_dead()
            if has_changed is None:
                if any(each.has_refused for each in supervised):
                    stop()
            elif has_changed():
                logger.info("the code has changed: worker processes are replaced")
                for each in supervised:
                    each.restart()
    return max((abs(each.status or 0) for each in supervised), default=0)


def supervised_processes(
    load: Callable[[int], Worker], processes: int, limits: ProcessLimits
) -> list[SupervisedProcess]:
    """Return the processes, which have not started yet."""
    return [SupervisedProcess(number, load, limits.of_process(number, processes)) for number in range(processes)]


class SupervisedProcess:
    """A worker process, and its replacements."""

    def __init__(self, number: int, load: Callable[[int], Worker], limits: ProcessLimits) -> None:
        self._number = number
        self._name = f"sqlqueue-worker-{number + 1}"
        self._load = load
        self.limits = limits
        self._process: Any = None
        self._begun = 0.0
        self._due: float | None = None
        self._pauses: Iterator[timedelta] = growing_pauses(0.2, 30)
        self._stopping = self._restarting = False
        self._memory: Any = None
        self._crashes: list[Crash] = []
        """The deaths of its predecessors whose tasks are still to be released."""
        self._turn = 0
        """What its event loop last showed, see :func:`.turn_of`; since when, and when this was last looked at."""
        self._turned = self._looked = 0.0
        self._is_stalled = False
        """Whether it has been killed because its event loop stood still."""
        self.status: int | None = None
        self.has_refused = False
        """Whether it cannot start."""

    def start(self) -> None:
        """Start the process, unless a signal has already stopped it."""
        self._due = None
        if self._stopping:
            return
        self._begun = time.monotonic()
        self._turn, self._is_stalled = 0, False
        self._memory = shared_memory()
        supervision = Supervision(self._memory, tuple(self._crashes), self.limits)
        self._process = start(_main, self._load, self._number, supervision, name=self._name)
        if self._stopping:  # a signal came while it was started
            self.signal(signal.SIGTERM)

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.is_alive()

    @property
    def sentinel(self) -> int:
        """The handle with which :func:`multiprocessing.connection.wait` waits for its end."""
        sentinel: int = self._process.sentinel
        return sentinel

    @property
    def is_wanted(self) -> bool:
        """Whether it is alive or waiting to be replaced."""
        return self.is_alive or self._due is not None

    def signal(self, number: int) -> None:
        """Forward a signal to the process, and stop replacing it."""
        self._stopping = True
        self._due = None
        if self.is_alive:
            os.kill(self._process.pid, number)

    def kill_if_stalled(self) -> None:
        """Kill the process if its event loop has been standing still for too long."""
        if not self.is_alive or self._is_stalled:
            return
        turn, now = turn_of(self._memory), time.monotonic()
        if not turn or turn != self._turn or now - self._looked > UNWATCHED:
            self._turn, self._turned = turn, now
        self._looked = now
        if now - self._turned > STALLED:
            self._is_stalled = True
            self._process.kill()

    def restart(self) -> None:
        """Stop the process as a first signal does, and start it anew once it has ended, or at once if it has."""
        if self._stopping:
            return
        if not self.is_alive:
            self._due = time.monotonic()
        elif not self._restarting:
            os.kill(self._process.pid, signal.SIGTERM)
        self._restarting = self.is_alive

    def replace_if_dead(self) -> None:
        """Schedule its replacement if it has died, and start the replacement when it is due."""
        if self._due is not None and time.monotonic() >= self._due:
            self.start()
        elif self._process is not None and not self.is_alive and self._due is None:
            status: int = self._process.exitcode
            self._process.join()
            self._process = None
            self._ended(status, end_of(self._memory))

    def _ended(self, status: int, end: End) -> None:
        if has_recovered(self._memory):
            self._crashes.clear()
        # on a signal, it may not have installed its signal handlers yet
        self.status = 0 if self._stopping and status == -signal.SIGTERM else status
        self.has_refused = end is End.REFUSED
        restarting, self._restarting = self._restarting, False
        if self._stopping:
            return
        how = _STALLED_TEXT.format(STALLED) if self._is_stalled else exit_text(status)
        if end is End.DIED and (crash := crash_of(self._memory, how)) is not None:
            self._crashes.append(crash)
        if restarting or end is End.LIMIT_REACHED:
            self._due = time.monotonic()
        elif end is End.DIED:
            self._schedule(status, how)

    def _schedule(self, status: int, how: str) -> None:
        if time.monotonic() - self._begun > SETTLED:
            self._pauses = growing_pauses(0.2, 30)
        pause = next(self._pauses)
        self._due = time.monotonic() + pause.total_seconds()
        text = "%s has died: it %s (%s), replaced in %.1f s"
        logger.error(text, self._name, how, status, pause.total_seconds())


def _main(load: Callable[[int], Worker], number: int, supervision: Supervision) -> None:
    """Run a worker in a process of the supervisor."""
    try:
        worker = load(number)
        worker._supervision = supervision
    except SQLQueueError as error:
        logger.error("worker cannot start: %s", error)
        note_end(supervision.memory, End.REFUSED)
        sys.exit(CANNOT_START)
    threading.Thread(target=_follow_parent, args=(worker,), daemon=True).start()
    try:
        has_reached_limit = run_to_end(worker)
    except SQLQueueError:  # the worker has logged the reason
        note_end(supervision.memory, End.REFUSED)
        sys.exit(CANNOT_START)
    note_end(supervision.memory, End.LIMIT_REACHED if has_reached_limit else End.STOPPED)


def run_to_end(worker: Worker) -> bool:
    """Call :meth:`.Worker.run` in a process that does nothing else: no thread of a handler keeps it alive.

    Returns whether the process has reached a limit of its supervisor.
    """
    settle_in()
    worker.run()
    run = worker._last_run
    has_reached_limit = run is not None and run.has_reached_limit
    if has_reached_limit or (run is not None and run.ends_at_once):
        end_soon()
    return has_reached_limit


def _follow_parent(worker: Worker) -> None:
    """Stop the worker when its supervisor dies: otherwise nothing would stop or replace it."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        worker.stop()
