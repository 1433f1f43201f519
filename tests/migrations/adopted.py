"""A table of an existing application, and the same table as a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Integer, String, UniqueConstraint, desc
from sqlalchemy import Sequence as KeySequence
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin, QueueOptions, TopicMixin


class Before(DeclarativeBase):
    pass


class Customer:
    """A model with a serial key on PostgreSQL, as was customary; other engines get explicit keys."""

    __tablename__ = "adopted_customer"

    id: Mapped[int] = mapped_column(KeySequence("adopted_customer_id", optional=True), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))


class Order:
    """A model whose names need quotes, with its own status column."""

    __tablename__ = "Adopted order"
    __table_args__ = (
        UniqueConstraint("reference", name="uq_adopted_reference"),
        CheckConstraint("amount >= 0", name="ck_adopted_amount"),
    )

    id: Mapped[int] = mapped_column(KeySequence("adopted_order_id", optional=True), primary_key=True)
    reference: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20), index=True)
    amount: Mapped[int] = mapped_column(Integer)
    customer_id: Mapped[int] = mapped_column(ForeignKey("adopted_customer.id"))


class OldCustomer(Customer, Before):
    pass


class OldOrder(Order, Before):
    pass


class After(DeclarativeBase):
    pass


class NewCustomer(Customer, After):
    pass


class NewOrder(TopicMixin, Order, After):
    __queue__ = QueueOptions(
        columns={"status": "queue_status", "finished_at": "ended_at", "topic": "order"}, order_by=(desc("amount"),)
    )


class Elsewhere(DeclarativeBase):
    """Like :class:`After`, but the simplest queue."""


class ElsewhereCustomer(QueueMixin, Customer, Elsewhere):
    pass


def rows(number: int) -> Sequence[Mapping[str, Any]]:
    return [
        {"id": n, "reference": f"r{n}", "status": "paid", "amount": n % 7, "customer_id": 1 + n % 3}
        for n in range(1, number + 1)
    ]


CUSTOMERS = [{"id": n, "name": f"customer {n}"} for n in (1, 2, 3)]
