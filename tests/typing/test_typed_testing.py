# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Only type-checked: the fixture `queue`, a relay's publisher, and renamed columns of a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, assert_type

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, joinedload, mapped_column, sessionmaker

from sqlqueue import AsyncQueueSession, QueueMixin, QueueOptions, QueueSession, Worker
from sqlqueue.outbox import OutboxMixin, Relay
from sqlqueue.testing import AsyncQueue, Counts, Queue


class Base(DeclarativeBase):
    pass


class Order(QueueMixin, Base):
    __tablename__ = "customer_order"
    __queue__ = QueueOptions(columns={"status": "queue_status"})

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")

    if TYPE_CHECKING:
        queue_status: Mapped[str]


class Outbox(OutboxMixin, Base):
    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(primary_key=True)


def the_fixture(queue: Queue[QueueSession]) -> None:
    assert_type(queue.session, QueueSession)
    assert_type(queue.session.claim(Order, Order.queue_status == "available"), Order | None)
    assert_type(queue.drain(Order), Counts)
    assert_type(queue.assert_enqueued(Order), list[Order])


def with_a_plain_session(queue: Queue[Session]) -> None:
    queue.session.add(Order())


async def the_asyncio_fixture(queue: AsyncQueue[AsyncQueueSession]) -> None:
    assert_type(await queue.session.claim(Order), Order | None)
    assert_type(await queue.assert_enqueued(Order), list[Order])


def of_no_session(queue: Queue[int]) -> None:  # type: ignore[type-var]
    ...


def publish_list(messages: list[Outbox]) -> None: ...
def publish_sequence(messages: Sequence[Outbox]) -> None: ...
async def publish_later(messages: list[Outbox]) -> None: ...
def publish_others(messages: list[Order]) -> None: ...


def relays(sessions: sessionmaker[QueueSession]) -> None:
    Relay(sessions, Outbox, publish_list)
    Relay(sessions, Outbox, publish_sequence)
    Relay(sessions, Outbox, publish_later)
    Relay(sessions, Outbox, publish_others)  # type: ignore[arg-type]


def handlers(sessions: sessionmaker[QueueSession]) -> None:
    worker = Worker(sessions)

    @worker.handler(Order, options=[joinedload("*")], lease=timedelta(minutes=1))
    def handle(session: QueueSession, order: Order) -> None:
        assert_type(order.queue_status, str)

    assert_type(handle(QueueSession(), Order()), None)
