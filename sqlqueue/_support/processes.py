"""How this package starts processes, and ends them.

They are not forked from the one that asks, whose connections a child would share.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, get_all_start_methods, get_context
from typing import Any

CONTEXT: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; those started within hear of it from their parent alone.

    What the fork server starts ignores the signal if the server has been started so: this process is deaf no longer
    than that takes.
    """
    if CONTEXT.get_start_method() != "forkserver":
        with _ignoring_interrupts():
            yield
        return
    with _ignoring_interrupts():
        forkserver.ensure_running()
    yield


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


LAST_WORDS = 3.0
"""Seconds for what a process does at its end."""


def end_soon() -> None:
    """Let this process end, with status 0, within :data:`LAST_WORDS`.

    Python would wait for all threads that are no daemons, and what a handler has called may have begun some.
    """
    timer = threading.Timer(LAST_WORDS, os._exit, [0])
    timer.daemon = True
    timer.start()


YOUNG = 10_000
"""So many new objects before the garbage collector looks for cycles: most of what belongs to a job is gone by then."""


def settle_in() -> None:
    """What is loaded by now stays as long as the process: the garbage collector need not go through it ever again."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # it is not switched off
        gc.set_threshold(max(young, YOUNG), *older)
