# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Only type-checked, by mypy and pyright, both strict: handlers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_type

from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import (
    AsyncQueueSession,
    AsyncSteps,
    Discard,
    QueueMixin,
    QueueSession,
    StepMixin,
    Steps,
    TopicMixin,
    Worker,
    current_job,
)

MINUTE = timedelta(minutes=1)


class Base(DeclarativeBase):
    pass


class Email(QueueMixin, Base):
    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)


class Notice(TopicMixin, Base):
    __tablename__ = "notice"

    id: Mapped[int] = mapped_column(primary_key=True)


class Order(StepMixin, Base):
    __tablename__ = "order"

    id: Mapped[int] = mapped_column(primary_key=True)


worker = Worker(sessionmaker(class_=QueueSession), poll=MINUTE, grace=MINUTE, notify=False, name="me")
async_worker = Worker(async_sessionmaker(class_=AsyncQueueSession))


@worker.handler(Email, concurrency=8, timeout=MINUTE, lease=MINUTE, batch=10)
def send(session: QueueSession, email: Email) -> int:
    assert_type(current_job().is_lost, bool)
    assert_type(current_job().attempt, int)
    return email.id


@worker.handler(Notice, Notice.topic == "billing", mode="lock")
def bill(session: QueueSession, notice: Notice) -> None: ...


@Worker(sessionmaker()).handler(Email, chunk=100, chunk_wait=MINUTE)
def send_chunk(session: QueueSession, emails: Sequence[Email]) -> dict[Email, Exception]:
    return {email: Discard("no such mailbox") for email in emails if not email.id}


@Worker(sessionmaker()).handler(Email, mode="at-most-once")
def forget(email: Email) -> None: ...


def book(session: QueueSession) -> str:
    return "booked"


async def book_later(session: AsyncQueueSession) -> str:
    return "booked"


async def charge() -> int:
    return 7


@worker.handler(Order)
def fulfil(steps: Steps, order: Order) -> None:
    assert_type(steps.run("charge", lambda: 7), int)
    assert_type(steps.run("book", book), str)
    assert_type(steps.key("charge"), str)
    steps.sleep("rest", MINUTE)


@async_worker.handler(Order)
async def fulfil_later(steps: AsyncSteps, order: Order) -> None:
    assert_type(await steps.run("charge", charge), int)
    assert_type(await steps.run("book", book_later), str)
    assert_type(await steps.key("charge"), str)
    await steps.sleep("rest", MINUTE)


@async_worker.handler(Email)
async def send_later(session: AsyncQueueSession, email: Email) -> None: ...


def what_a_handler_is_stays_what_it_was(session: QueueSession, email: Email) -> None:
    assert_type(send(session, email), int)


def wrong() -> None:
    @worker.handler(Email)  # type: ignore[arg-type]
    def of_another_model(session: QueueSession, notice: Notice) -> None: ...

    worker.handler(Email, mode="locked")  # type: ignore[arg-type]
    worker.handler(int)  # type: ignore[type-var]
    del of_another_model
