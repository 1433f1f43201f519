"""Processes of other libraries, which respond to commands with JSON; see ``scripts/common.py``."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from .contenders import PeerError

_CHECKOUT = str(Path(__file__).parents[2])
_PATIENCE = 120
"""The longest wait for a response, in seconds."""


class Script:
    """A running script."""

    def __init__(self, process: subprocess.Popen[str], errors: Any) -> None:
        self._process = process
        self.process_id = process.pid
        self._errors = errors
        self._answers = SimpleQueue[str]()
        Thread(target=self._read, daemon=True).start()
        self.about: dict[str, str] = self.answer()
        """What it reports about itself: its version and its SQL."""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def tell(self, *command: object) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("it has exited") from None

    def answer(self) -> Any:
        """Return the next response.  Raises :class:`.PeerError` if there is none."""
        try:
            line = self._answers.get(timeout=_PATIENCE)
        except Empty:
            raise self._failure(f"no response in {_PATIENCE} seconds") from None
        if not line:
            raise self._failure("it has exited")
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        """Send a command, and return the response."""
        self.tell(*command)
        return self.answer()

    def _failure(self, what: str) -> PeerError:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        errors = [line.strip() for line in lines if "Error" in line]
        return PeerError(": ".join([what, *(errors or lines)[-1:]]))


@contextmanager
def script(*command: str, url: str) -> Iterator[Script]:
    """Start a script for a database, and yield it once it has reported its version; kill it afterwards."""
    here = os.pathsep.join([_CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "SQLQUEUE_BENCH_URL": url, "PYTHONPATH": here}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=environment,
        )
        try:
            yield Script(process, errors)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
