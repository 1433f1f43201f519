"""The signals that stop a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..._support.processes import handle_signal, restore_signal


@contextmanager
def handling_signals(heard: Callable[[], object]) -> Iterator[None]:
    """Call ``heard`` on SIGTERM and SIGINT within the block, but not in processes that are forked there.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        handle_signal(number, lambda *_: heard())
    try:
        yield
    finally:
        for number, handler in before.items():
            restore_signal(number, handler)
