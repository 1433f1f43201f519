"""Starts the programs of an example, and stops them like a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.support.processes import run_program
from tests.support.workers import eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STARTING = 180.0
"""Seconds that a program may take to start or to do its work on a busy machine."""


def environment(**variables: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def run(example: str | Path, *command: str, **variables: str) -> str:
    """Run a command in the folder of the example to its end; return its output."""
    ended = run_program(command, EXAMPLES / example, timeout=STARTING, **environment(**variables))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@contextmanager
def running(example: str | Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python command in the folder of the example during the block. It gets SIGTERM at the end, and must then
    exit."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES / example,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
        assert process.poll() is None, process.communicate()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STARTING)
        finally:
            process.kill()


def work(target: str) -> Sequence[str]:
    """Return the command ``sqlqueue work``."""
    return ("-c", "from sqlqueue.cli import main; main()", "work", target)


def answers(client: httpx2.Client, path: str) -> bool:
    """Return whether the server responds at all."""
    try:
        client.get(path)
    except httpx2.TransportError:
        return False
    return True


@contextmanager
def served(port: int) -> Iterator[httpx2.Client]:
    """Yield a client of the server that starts on this port."""
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        eventually(lambda: answers(client, "/"), within=STARTING)
        yield client
