"""The measured processes.  They are started once, and connect before each measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

from sqlqueue.evaluation.support import ChildProcess, EvaluationError

from .counter import StatementCounter
from .plan import Plan
from .workloads import MakeWorkload, Workload

_LOOK = 0.02


class Spent(NamedTuple):
    """The time in seconds, CPU seconds, statements and commits of one process in a measurement."""

    seconds: float
    cpu: float
    statements: int
    commits: int


Work: TypeAlias = Callable[[int, Callable[[], bool]], list[Spent]]
"""A function that makes processes work on jobs until they are done, and returns what each process spent."""


class _Failed(NamedTuple):
    reason: str


class ProcessPool:
    """The processes that do the work; :meth:`prepared` connects some of them."""

    def __init__(self, channels: Sequence[Connection]) -> None:
        self._channels = channels

    @contextmanager
    def prepared(self, make: MakeWorkload, processes: int) -> Iterator[Work]:
        """Connect some processes, and yield a function that makes them work on jobs until ``is_done`` returns true.

        It raises :class:`.EvaluationError` if a process fails.
        """
        channels = self._channels[:processes]
        _tell(channels, make)
        _answers(channels)

        def work(jobs: int, is_done: Callable[[], bool]) -> list[Spent]:
            _tell(channels, jobs)
            while not is_done():
                if failed := [channel for channel in channels if channel.poll()]:
                    _answers(failed)
                time.sleep(_LOOK)
            _tell(channels, "end")
            return _answers(channels)

        yield work
        _tell(channels, None)
        _answers(channels)


@contextmanager
def process_pool(plan: Plan) -> Iterator[ProcessPool]:
    """Start the processes of ``plan``, yield them, and kill them afterwards."""
    with ExitStack() as stack:
        numbers = range(1, max(plan.processes) + 1)
        processes = [stack.enter_context(ChildProcess(f"process {n}", _main, plan)) for n in numbers]
        yield ProcessPool([each.channel for each in processes])


def _tell(channels: Sequence[Connection], message: object) -> None:
    for channel in channels:
        with suppress(BrokenPipeError):  # the process has failed, and its response contains the reason
            channel.send(message)


def _answers(channels: Sequence[Connection]) -> list[Any]:
    try:
        answers = [channel.recv() for channel in channels]
    except (EOFError, ConnectionError) as error:
        raise EvaluationError("a process has died") from error
    if failed := [answer for answer in answers if isinstance(answer, _Failed)]:
        raise EvaluationError(failed[0].reason)
    return answers


def _main(channel: Connection, plan: Plan) -> None:
    try:
        while True:
            _serve(channel, plan, channel.recv())
    except Exception as error:
        channel.send(_Failed(f"{type(error).__name__}: {error}"))


def _serve(channel: Connection, plan: Plan, make: MakeWorkload) -> None:
    counter = StatementCounter()
    workload = make(plan, counter)
    channel.send("ready")
    while (jobs := channel.recv()) is not None:
        channel.send(_worked(channel, workload, counter, jobs))
    workload.close()
    channel.send("closed")


def _worked(channel: Connection, workload: Workload, counter: StatementCounter, jobs: int) -> Spent:
    statements, commits = counter.statements, counter.commits
    begun, cpu = time.perf_counter(), time.process_time()
    workload.begin(jobs)
    while not channel.poll(_LOOK):
        workload.check()
    channel.recv()
    workload.end()
    return Spent(
        seconds=time.perf_counter() - begun,
        cpu=time.process_time() - cpu,
        statements=counter.statements - statements,
        commits=counter.commits - commits,
    )
