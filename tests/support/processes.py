"""Child processes of a test: claimers that run concurrently, wait for a signal, or are killed in mid-transaction; and
programs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sqlqueue._support.processes import CONTEXT
from sqlqueue.cli import main

CONTEXT.set_forkserver_preload(
    ["pytest", "tests.suite.children", "tests.worker.children"]
)  # they then start at the same time

_ACCEPT_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = [sys.executable, "-c", f"{_ACCEPT_SIGINT}; from sqlqueue.cli import main; main()"]
"""The command line, which can be interrupted without interrupting the test run."""


class Gate:
    """The child's end: `gate.wait()` reports that the child has arrived, and blocks until the test lets it pass."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self) -> None:
        self._connection.send(("arrived", None))
        self._connection.recv()


class Child:
    """A process that runs `target(gate, *args)`; the target is importable and its arguments can be pickled."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        self.connection, far_end = CONTEXT.Pipe()
        self.has_arrived = False
        self._process = CONTEXT.Process(target=_main, args=(far_end, target, args), daemon=True)
        self._process.start()
        far_end.close()  # so that the death of the child ends the pipe

    def wait_until_arrived(self, timeout: float = 60) -> None:
        self._receive("arrived", timeout)

    def take(self) -> None:
        """Receive that it has arrived, or has returned; raise what it has raised."""
        kind, value = self.connection.recv()
        if kind == "failed":
            raise RuntimeError(f"the child process has failed: {value}")
        self.has_arrived = kind == "arrived"

    def let_pass(self) -> None:
        self.connection.send(None)

    def result(self, timeout: float = 60) -> Any:
        """Return the result of the target, once the process has ended."""
        value = self._receive("returned", timeout)
        self._process.join(timeout)
        return value

    @property
    def status(self) -> int | None:
        """The exit status, or `None` while it runs."""
        status: int | None = self._process.exitcode
        return status

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process as `kill -9` does, without cleanup."""
        self._process.kill()
        self._process.join()
        self.connection.close()

    def _receive(self, expected: str, timeout: float) -> Any:
        if not self.connection.poll(timeout):
            raise TimeoutError(f"the child process has not {expected} within {timeout} s")
        kind, value = self.connection.recv()
        if kind != expected:
            raise RuntimeError(f"the child process has {kind}, not {expected}: {value}")
        return value


class Processes:
    """The child processes of one test; those still running at its end are killed."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def spawn(self, target: Callable[..., Any], *args: Any) -> Child:
        child = Child(target, *args)
        self._children.append(child)
        return child

    def first(self, among: Sequence[Child], timeout: float = 60) -> Child:
        """Return the first of these children that has arrived or ended."""
        found = wait([child.connection for child in among], timeout)
        if not found:
            raise TimeoutError(f"no child process has arrived or ended within {timeout} s")
        child = next(each for each in among if each.connection is found[0])
        child.take()
        return child

    def end_test(self) -> None:
        for child in self._children:
            child.kill()


def _main(connection: Connection, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        connection.send(("returned", target(Gate(connection), *args)))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


# -- programs ----------------------------------------------------------------------------------------------------------


def run_program(
    arguments: Sequence[object], directory: Path, *, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `sqlqueue ...`, `python -m ...` or `python file ...` in the directory, in a process that has imported the
    package already, and return how it ended and what it printed.

    For programs that look at neither their process group nor what has been imported.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, name) for name in ("out", "err")]
        words = [str(each) for each in arguments]
        child = CONTEXT.Process(target=_run, args=(words, str(directory), environment, [*map(str, files)]))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            raise TimeoutError(f"{words} has not ended")
        return subprocess.CompletedProcess(words, child.exitcode, *(file.read_text() for file in files))


def _run(words: list[str], directory: str, environment: dict[str, str], files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(environment)
    os.chdir(directory)
    program, *rest = words
    if program == "sqlqueue":
        sys.argv = words
        main()
    sys.path.insert(0, directory)
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        runpy.run_path(rest[0], run_name="__main__")
