"""Waiting on the event loop of a worker: for work that has begun, and for a lock that threads share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest
from sqlalchemy.util import await_only, greenlet_spawn

from sqlqueue.worker import threads
from sqlqueue.worker.threads import FairLock, Underway, in_task
from tests.support.workers import PATIENCE, eventually


def test_a_cancelled_waiter_does_not_cancel_the_future() -> None:
    async def main() -> str:
        underway = Underway()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiter = asyncio.create_task(underway.until(future))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert not future.cancelled()
        future.set_result("done")
        return await underway.until(future)

    assert asyncio.run(main()) == "done"


def test_errors_without_a_waiter_are_silent() -> None:
    noise: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: noise.append(context))
        future: asyncio.Future[None] = loop.create_future()
        waiter = asyncio.create_task(Underway().until(future))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        future.set_exception(OSError())
        await asyncio.sleep(0)
        del future, waiter
        gc.collect(1)  # of the many objects of other tests, none are young

    asyncio.run(main())
    assert noise == []


def test_a_call_that_is_cancelled_before_it_begins_is_closed() -> None:
    """Otherwise Python warns that the handler's coroutine was never awaited."""

    async def main() -> str:
        coroutine = asyncio.sleep(0)
        caller = asyncio.create_task(in_task(coroutine, copy_context()))
        await asyncio.sleep(0)  # the caller has created the task of the coroutine
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return inspect.getcoroutinestate(coroutine)

    assert asyncio.run(main()) == inspect.CORO_CLOSED


# -- a fair lock that threads and coroutines share --------------------------------------------------------------------

NOT_LONG = 0.05


def test_one_holder_at_a_time() -> None:
    lock, inside, most = FairLock(), 0, 0

    def enter(is_async: bool) -> None:
        nonlocal inside, most
        assert lock.acquire(PATIENCE, is_async=is_async)
        inside += 1
        most = max(most, inside)
        await_only(asyncio.sleep(0.001)) if is_async else time.sleep(0.001)
        inside -= 1
        lock.release()

    async def enter_often() -> None:
        await asyncio.gather(*(greenlet_spawn(enter, True) for _ in range(50)))

    with ThreadPoolExecutor(10) as pool:
        done = pool.map(enter, [False] * 50)
        asyncio.run(enter_often())
        assert len(list(done)) == 50
    assert (inside, most) == (0, 1)


@pytest.fixture
def held() -> FairLock:
    lock = FairLock()
    lock.acquire(PATIENCE, is_async=False)
    return lock


@contextmanager
def another_waits(lock: FairLock) -> Iterator[None]:
    """Another thread waits for the lock, and has it once the block has ended."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lock.acquire, PATIENCE, is_async=False)
        eventually(lambda: len(lock._waiting) == 1)
        yield
        assert other.result()


def test_a_caller_that_has_waited_is_not_passed(held: FairLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HANDED_AFTER", 0)
    order: list[int] = []

    def enter(number: int) -> None:
        held.acquire(PATIENCE, is_async=False)
        order.append(number)
        held.release()

    with ThreadPoolExecutor(5) as pool:
        for number in range(5):
            pool.submit(enter, number)
            eventually(lambda number=number: len(held._waiting) == number + 1)
        held.release()
    assert order == [0, 1, 2, 3, 4]


def test_a_free_lock_is_acquired_at_once_although_others_wait(held: FairLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PAUSES", (PATIENCE, PATIENCE))  # the others do not look again
    with another_waits(held):
        monkeypatch.setattr(threads, "HANDED_AFTER", PATIENCE)
        held.release()
        assert held.acquire(NOT_LONG, is_async=False)
        monkeypatch.setattr(threads, "HANDED_AFTER", 0)
        held.release()


def test_a_waiting_caller_finds_a_free_lock(held: FairLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HANDED_AFTER", PATIENCE)
    with another_waits(held):
        held.release()


def test_waiting_ends_without_a_notification(held: FairLock) -> None:
    assert not held.acquire(NOT_LONG, is_async=False)
    assert not asyncio.run(greenlet_spawn(held.acquire, NOT_LONG, is_async=True))
    held.release()
    assert held.acquire(NOT_LONG, is_async=False)


def test_a_cancelled_coroutine_passes_the_lock_on(held: FairLock) -> None:
    async def cancel() -> None:
        waiting = asyncio.create_task(greenlet_spawn(held.acquire, PATIENCE, is_async=True))
        while not held._waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(cancel())
    held.release()
    assert held.acquire(NOT_LONG, is_async=False)
