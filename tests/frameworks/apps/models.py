"""The models of both applications."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqlqueue import QueueMixin


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "app_customer"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    greeting: Mapped[str | None] = mapped_column(String(200))


class Welcome(QueueMixin, Base):
    """To be sent to a new customer."""

    __tablename__ = "app_welcome"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    customer: Mapped[Customer] = relationship()
