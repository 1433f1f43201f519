"""Starting and ending processes.

They are not forked from the calling process, since a child would share its connections.
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
    """Make processes that are started within this context ignore Ctrl-C, so that only their parent stops them.

    A terminal sends the signal to all of its processes.  Processes of the fork server ignore it if the server was
    started that way, so this process ignores it only while the server starts.
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
"""Seconds that a process has for its cleanup at the end."""


def end_soon() -> None:
    """End this process with status 0 after at most :data:`LAST_WORDS` seconds.

    Python waits for all threads that are not daemons, and handlers may have started some.
    """
    timer = threading.Timer(LAST_WORDS, os._exit, [0])
    timer.daemon = True
    timer.start()


YOUNG = 10_000
"""New objects between garbage collections, enough that most objects of a job are freed before."""


def settle_in() -> None:
    """Exclude all objects loaded so far from garbage collection, since they stay as long as the process."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # collection is enabled
        gc.set_threshold(max(young, YOUNG), *older)
