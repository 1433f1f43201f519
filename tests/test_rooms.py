"""Of tests side by side: those about time and the others take turns, however many there are of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.rooms import Rooms

pytestmark = pytest.mark.once


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Rooms]]:
    """What three processes have opened."""
    opened = [Rooms(tmp_path) for _ in range(3)]
    yield opened
    for rooms in opened:
        rooms.close()


@pytest.mark.parametrize("timed", [True, False])
def test_one_kind_at_a_time(processes: list[Rooms], timed: bool) -> None:
    first, like, unlike = processes
    inside = Event()

    def enter() -> None:
        with unlike.entered(timed=not timed):
            inside.set()

    with first.entered(timed=timed), like.entered(timed=timed):
        thread = Thread(target=enter)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(10)
    thread.join()


def test_alone(processes: list[Rooms]) -> None:
    first, like, _ = processes
    inside = Event()

    def enter() -> None:
        with like.entered(timed=True):
            inside.set()

    with first.entered(timed=True, alone=True):
        thread = Thread(target=enter)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(10)
    thread.join()
