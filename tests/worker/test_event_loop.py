"""Work that has begun is finished even if its waiter is cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from sqlqueue.worker.threads import Underway


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
