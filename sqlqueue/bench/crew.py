"""The measured processes.  They are started once, and connect before each measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from .._support.processes import CONTEXT, start
from .hands import Hand, MakeHand
from .plan import BenchError, Plan
from .tally import Tally

_LOOK = 0.02


class Spent(NamedTuple):
    """The time in seconds, CPU seconds, statements and commits of one process in a measurement."""

    seconds: float
    cpu: float
    statements: int
    commits: int


class _Failed(NamedTuple):
    reason: str


class Crew:
    """The processes that do the work; :meth:`employed` prepares some of them."""

    def __init__(self, channels: Sequence[Connection]) -> None:
        self._channels = channels

    @contextmanager
    def employed(self, make: MakeHand, processes: int) -> Iterator[Callable[[int, Callable[[], bool]], list[Spent]]]:
        """Connect some processes, and yield a function that makes them work on jobs until ``is_done`` returns true.

        It raises :class:`.BenchError` if a process fails.
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
def crew(plan: Plan) -> Iterator[Crew]:
    """Start the processes of ``plan``, yield them, and kill them afterwards."""
    with ExitStack() as stack:
        yield Crew([stack.enter_context(_process(plan)) for _ in range(max(plan.processes))])


@contextmanager
def _process(plan: Plan) -> Iterator[Connection]:
    here, there = CONTEXT.Pipe()
    process = start(_main, there, plan, daemon=True)
    there.close()
    try:
        yield here
    finally:
        process.kill()
        process.join()


def _tell(channels: Sequence[Connection], message: object) -> None:
    for channel in channels:
        with suppress(BrokenPipeError):  # the process has failed, and its response contains the reason
            channel.send(message)


def _answers(channels: Sequence[Connection]) -> list[Any]:
    try:
        answers = [channel.recv() for channel in channels]
    except (EOFError, ConnectionError) as error:
        raise BenchError("a process has died") from error
    if failed := [answer for answer in answers if isinstance(answer, _Failed)]:
        raise BenchError(failed[0].reason)
    return answers


def _main(channel: Connection, plan: Plan) -> None:
    try:
        while True:
            _serve(channel, plan, channel.recv())
    except Exception as error:
        channel.send(_Failed(f"{type(error).__name__}: {error}"))


def _serve(channel: Connection, plan: Plan, make: MakeHand) -> None:
    tally = Tally()
    hand = make(plan, tally)
    channel.send("ready")
    while (jobs := channel.recv()) is not None:
        channel.send(_worked(channel, hand, tally, jobs))
    hand.close()
    channel.send("closed")


def _worked(channel: Connection, hand: Hand, tally: Tally, jobs: int) -> Spent:
    statements, commits = tally.statements, tally.commits
    begun, cpu = time.perf_counter(), time.process_time()
    hand.begin(jobs)
    while not channel.poll(_LOOK):
        hand.check()
    channel.recv()
    hand.end()
    return Spent(
        seconds=time.perf_counter() - begun,
        cpu=time.process_time() - cpu,
        statements=tally.statements - statements,
        commits=tally.commits - commits,
    )
