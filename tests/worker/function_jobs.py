"""Functions that can be tasks, and others that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import AsyncQueueSession, QueueSession, Worker


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
