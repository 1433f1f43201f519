"""Results that are read once for all viewers: how long they are kept, and how actions discard them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sqlqueue.dashboard.site import Snapshots


class Source:
    """A source that counts its reads; a read ends when the test allows it."""

    def __init__(self) -> None:
        self.reads = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def quickly(self) -> int:
        self.reads += 1
        return self.reads

    async def slowly(self) -> int:
        time.sleep(0.05)
        return await self.quickly()

    async def held_up(self) -> int:
        number = await self.quickly()
        self.begun.set()
        await self.go.wait()
        return number


def run(work: Callable[[Snapshots, Source], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await work(Snapshots(), Source())

    return asyncio.run(whole())


def test_what_took_long_to_read_is_kept_longer() -> None:
    """Otherwise viewers of a large queue would keep its database busy."""

    async def look(kept: Snapshots, source: Source) -> list[int]:
        return [await kept.get("figures", source.slowly, 0) for _ in range(2)]

    assert run(look) == [1, 1]


def test_soon_after_a_change_pages_follow_its_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may run a task right after an action: a result from before that is not shown for long."""
    monkeypatch.setattr("sqlqueue.dashboard.site.TIMES", 1e9)
    monkeypatch.setattr("sqlqueue.dashboard.site.LONGEST", 3_600)

    async def look(kept: Snapshots, source: Source) -> None:
        kept.forget()
        while await kept.get("figures", source.slowly, 0) == 1:
            await asyncio.sleep(0.01)

    run(lambda kept, source: asyncio.wait_for(look(kept, source), 60))


@pytest.mark.parametrize("bound", ["TIMES", "LONGEST"])
def test_a_snapshot_is_read_again_when_its_time_is_over(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"sqlqueue.dashboard.site.{bound}", 0)

    async def look(kept: Snapshots, source: Source) -> list[int]:
        return [await kept.get("figures", source.slowly, 0) for _ in range(2)]

    assert run(look) == [1, 2]


def test_the_oldest_snapshot_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.site.MAX_SNAPSHOTS", 2)

    async def look(kept: Snapshots, source: Source) -> list[int]:
        return [await kept.get(key, source.quickly, 60) for key in ("a", "b", "c", "c", "b", "a")]

    assert run(look) == [1, 2, 3, 3, 2, 4]


def test_a_viewer_who_leaves_does_not_cancel_the_read_for_others() -> None:
    async def look(kept: Snapshots, source: Source) -> int:
        first = asyncio.create_task(kept.get("figures", source.held_up, 60))
        await source.begun.wait()
        second = asyncio.create_task(kept.get("figures", source.held_up, 60))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        source.go.set()
        return await second

    assert run(look) == 1


def test_a_failure_is_not_kept() -> None:
    async def fails() -> int:
        raise TimeoutError

    async def look(kept: Snapshots, source: Source) -> int:
        with pytest.raises(TimeoutError):
            await kept.get("figures", fails, 60)
        return await kept.get("figures", source.quickly, 60)

    assert run(look) == 1


def test_results_being_read_during_an_action_are_not_shown_to_later_viewers() -> None:
    async def look(kept: Snapshots, source: Source) -> list[int]:
        before = asyncio.create_task(kept.get("figures", source.held_up, 60))
        await source.begun.wait()
        kept.forget()
        after = [await kept.get("figures", source.quickly, 60)]
        kept.forget()
        source.go.set()
        await before
        return [*after, await kept.get("figures", source.quickly, 60)]

    assert run(look) == [2, 3]


def test_snapshots_that_have_expired_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.site.TIMES", 0)

    async def look(kept: Snapshots, source: Source) -> set[Any]:
        for key in ("a", "b", "c"):
            await kept.get(key, source.quickly, 0 if key == "b" else 60)
        return set(kept._kept)

    assert run(look) == {"a", "c"}


def test_snapshots_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.dashboard.site.MAX_CHARACTERS", 100)

    async def look(kept: Snapshots, source: Source) -> list[set[Any]]:
        found = []
        for key, size in (("a", 30), ("b", 30), ("c", 60), ("d", 300), ("e", 30)):

            async def read(size: int = size) -> list[str]:
                return ["x" * size]

            await kept.get(key, read, 60)
            found.append(set(kept._kept))
        return found

    assert run(look) == [{"a"}, {"a", "b"}, {"b", "c"}, set(), {"e"}]
