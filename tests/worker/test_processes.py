"""Processes that ignore Ctrl-C, and a Ctrl-C that arrives while they start."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import pytest

from sqlqueue._support import processes


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Restore the handling of SIGINT, since a shell may have started the tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_during_the_start_takes_effect_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = forkserver._forkserver
    start_server, here_is_one = server.ensure_running, []

    def ensure_running() -> None:
        signal.raise_signal(signal.SIGINT)
        here_is_one.append(True)
        start_server()

    monkeypatch.setattr(server, "ensure_running", ensure_running)
    with pytest.raises(KeyboardInterrupt):
        processes.start(print, daemon=True)
    assert here_is_one


def test_the_process_ignores_interrupts_and_its_programs_do_not() -> None:
    here, there = processes.CONTEXT.Pipe()
    processes.start(tell, there, daemon=True)
    there.close()
    assert here.recv() == (signal.SIG_IGN, set())


def tell(channel: Connection) -> None:
    channel.send((signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())))
