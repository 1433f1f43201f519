"""Waiting on the event loop of a worker: for work that has begun, and for a lock that threads share."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.util import greenlet_spawn

from sqlqueue.worker import threads as fair_lock
from sqlqueue.worker.threads import FairLock, Underway
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
        gc.collect()

    asyncio.run(main())
    assert noise == []


# -- a fair lock that threads and coroutines share --------------------------------------------------------------------

NOT_LONG = 0.05


def test_one_holder_at_a_time() -> None:
    lock, inside, most = FairLock(), 0, 0

    def enter() -> None:
        nonlocal inside, most
        assert lock.acquire(PATIENCE, is_async=False)
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.001)
        inside -= 1
        lock.release()

    async def enter_on_a_loop() -> None:
        nonlocal inside, most
        assert await greenlet_spawn(lock.acquire, PATIENCE, is_async=True)
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        lock.release()

    async def enter_often() -> None:
        await asyncio.gather(*(enter_on_a_loop() for _ in range(50)))

    with ThreadPoolExecutor(10) as threads:
        threads_done = [threads.submit(enter) for _ in range(50)]
        asyncio.run(enter_often())
        for done in threads_done:
            done.result()
    assert (inside, most) == (0, 1)


def test_a_caller_that_has_waited_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_lock, "HANDED_AFTER", 0)
    lock, order = FairLock(), list[int]()
    lock.acquire(PATIENCE, is_async=False)

    def enter(number: int) -> None:
        lock.acquire(PATIENCE, is_async=False)
        order.append(number)
        lock.release()

    with ThreadPoolExecutor(5) as threads:
        for number in range(5):
            threads.submit(enter, number)
            eventually(lambda number=number: len(lock._waiting) == number + 1)
        lock.release()
    assert order == [0, 1, 2, 3, 4]


def test_a_free_lock_is_acquired_at_once_although_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_lock, "PAUSES", (PATIENCE, PATIENCE))  # the others do not look again
    lock = FairLock()
    lock.acquire(PATIENCE, is_async=False)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lock.acquire, PATIENCE, is_async=False)
        eventually(lambda: len(lock._waiting) == 1)
        monkeypatch.setattr(fair_lock, "HANDED_AFTER", PATIENCE)
        lock.release()
        assert lock.acquire(NOT_LONG, is_async=False)
        monkeypatch.setattr(fair_lock, "HANDED_AFTER", 0)
        lock.release()
        assert other.result()


def test_a_waiting_caller_finds_a_free_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_lock, "HANDED_AFTER", PATIENCE)
    lock = FairLock()
    lock.acquire(PATIENCE, is_async=False)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lock.acquire, PATIENCE, is_async=False)
        eventually(lambda: len(lock._waiting) == 1)
        lock.release()
        assert other.result()


def test_waiting_ends_without_a_notification() -> None:
    lock = FairLock()
    lock.acquire(PATIENCE, is_async=False)
    assert not lock.acquire(NOT_LONG, is_async=False)
    assert not asyncio.run(greenlet_spawn(lock.acquire, NOT_LONG, is_async=True))
    lock.release()
    assert lock.acquire(NOT_LONG, is_async=False)


def test_a_cancelled_coroutine_passes_the_lock_on() -> None:
    lock = FairLock()

    async def cancel() -> None:
        waiting = asyncio.create_task(greenlet_spawn(lock.acquire, PATIENCE, is_async=True))
        while not lock._waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    lock.acquire(PATIENCE, is_async=False)
    asyncio.run(cancel())
    lock.release()
    assert lock.acquire(NOT_LONG, is_async=False)
