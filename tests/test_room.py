"""Of tests side by side: one that is to be alone is."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.room import Room
from tests.worker.crew import eventually


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Room]]:
    """What three processes have opened."""
    opened = [Room(tmp_path) for _ in range(3)]
    yield opened
    for room in opened:
        room.close()


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_alone(processes: list[Room], first: bool, second: bool) -> None:
    here, there, _ = processes
    inside = Event()

    def enter() -> None:
        with there.entered(alone=second):
            inside.set()

    with here.entered(alone=first):
        thread = Thread(target=enter)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(10)
    thread.join()


def test_not_alone(processes: list[Room]) -> None:
    here, there, _ = processes
    with here.entered(alone=False), there.entered(alone=False):
        pass


def test_who_wants_to_be_alone_comes_before_who_comes_later(processes: list[Room], tmp_path: Path) -> None:
    here, there, later = processes
    order: list[str] = []

    def enter(room: Room, name: str, *, alone: bool) -> None:
        with room.entered(alone=alone):
            order.append(name)

    def door_is_shut() -> bool:
        with (tmp_path / "door").open("w") as door:
            try:
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with here.entered(alone=False):
        alone = Thread(target=enter, args=(there, "alone"), kwargs={"alone": True})
        alone.start()
        eventually(door_is_shut)
        last = Thread(target=enter, args=(later, "later"), kwargs={"alone": False})
        last.start()
        last.join(0.1)
        assert order == []
    alone.join(10)
    last.join(10)
    assert order == ["alone", "later"]
