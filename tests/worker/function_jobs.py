"""Functions that can be tasks, and others that cannot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import AsyncQueueSession, QueueSession, Worker
from tests.support.harness import Database


@dataclass
class Point:
    x: int
    y: float | None = None


def offline(*, is_async: bool = False) -> Worker:
    """Return a worker that is never run."""
    return Worker(async_sessionmaker(class_=AsyncQueueSession) if is_async else sessionmaker(class_=QueueSession))


def first_by_annotation(db: Session, to: str) -> None: ...


def none(to: str) -> None: ...


def not_first(to: str, db: str = "", *, session: str = "") -> None: ...


async def asynchronous(db: AsyncSession, to: str) -> None: ...


def example(
    number: int, name: Literal["a", 1] = "a", *, point: Point | None = None, names: dict[str, str | None] | None = None
) -> None: ...


def of_kind(db: Database, function: Callable[..., Any]) -> Any:
    """Return the function, or a coroutine function with the same parameters, to match the sessions of `db`."""

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return coroutine if db.is_async else function
