"""How this package starts processes: not by forking the one that asks, whose connections a child would share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from typing import Any

CONTEXT: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; those started within hear of it from their parent alone."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
