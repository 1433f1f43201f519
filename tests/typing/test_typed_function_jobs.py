# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Only type-checked, by mypy and pyright, both strict: tasks made of functions, and the helpers for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from sqlqueue import AsyncQueueSession, JobMixin, QueueMixin, QueueSession, Worker
from sqlqueue.testing import Counts, assert_enqueued, drain, perform

MINUTE = timedelta(minutes=1)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"

    id: Mapped[int] = mapped_column(primary_key=True)


class Email(QueueMixin, Base):
    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)


worker = Worker(sessionmaker(class_=QueueSession))
async_worker = Worker(async_sessionmaker(class_=AsyncQueueSession))


@worker.task(Job)
def send(session: QueueSession, to: str, *, copies: int = 1) -> bool:
    return session.is_active and bool(to) and copies > 0


@worker.task(Job, name="add", concurrency=4, timeout=MINUTE, lease=MINUTE)
def add(a: int, b: int) -> int:
    return a + b


@async_worker.task(Job)
async def fetch(session: AsyncSession, url: str) -> int:
    return len(url) if session.is_active else 0


def columns(job: Job) -> None:
    assert_type(job.task, str)
    assert_type(job.arguments, dict[str, Any] | None)


def calls(session: QueueSession) -> None:
    assert_type(send(session, "ada", copies=2), bool)
    assert_type(add(1, b=2), int)
    add("1", 2)  # type: ignore[arg-type]
    send("ada")  # type: ignore[call-arg, arg-type]


def enqueueing(session: QueueSession, plain: Session, scoped: scoped_session[QueueSession]) -> None:
    assert_type(send.enqueue(session, "ada"), Job)
    assert_type(send.enqueue(plain, to="ada", copies=2), Job)
    assert_type(add.enqueue(scoped, 1, 2), Job)
    assert_type(add.options(priority=-1, delay=MINUTE, tenant=7).enqueue(session, 1, b=2), Job)
    assert_type(add.job(1, 2), Job)
    send.enqueue(session)  # type: ignore[call-overload]
    send.enqueue(session, 7)  # type: ignore[call-overload]
    send.enqueue(session, "ada", copies="2")  # type: ignore[call-overload]
    send.enqueue(session, "ada", copy=2)  # type: ignore[call-overload]
    send.enqueue("ada")  # type: ignore[call-overload]
    add.options(priority="high")  # type: ignore[arg-type]
    add.options(delay=60)  # type: ignore[arg-type]


async def coroutines(session: AsyncQueueSession, plain: AsyncSession) -> None:
    assert_type(await fetch(session, "https://example.org"), int)
    assert_type(await fetch.enqueue(session, "https://example.org"), Job)
    assert_type(await add.enqueue(plain, 1, 2), Job)
    await fetch.enqueue(session)  # type: ignore[call-overload]
    await fetch.enqueue(session, url=7)  # type: ignore[call-overload]


def registering() -> None:
    worker.task(Email)  # type: ignore[type-var]
    worker.task(Job, concurrency="4")  # type: ignore[arg-type]


async def helpers_for_tests(session: QueueSession, coroutine: AsyncQueueSession, email: Email) -> None:
    assert_type(drain(worker), Counts)
    assert_type(drain(worker, session, Email, ahead=MINUTE, raise_errors=False), Counts)
    assert_type(drain(worker, sessionmaker(class_=QueueSession)), Counts)
    assert_type(await drain(async_worker, coroutine), Counts)
    assert_type(await drain(async_worker, async_sessionmaker(class_=AsyncQueueSession)), Counts)
    assert_type(assert_enqueued(session, Email, Email.id == 7, count=1, priority=0), list[Email])
    assert_type(assert_enqueued(session, send, to="ada"), list[Job])
    assert_type(await assert_enqueued(coroutine, Email), list[Email])
    assert_type(await assert_enqueued(coroutine, fetch, url="x"), list[Job])
    print(perform(worker, session, email) == "completed", await perform(worker, coroutine, email) == "failed")
    perform(worker, session, 7)  # type: ignore[call-overload]
    drain(worker, session, 7)  # type: ignore[call-overload]
