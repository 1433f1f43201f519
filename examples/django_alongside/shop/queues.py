"""The queue and its worker; start it with ``sqlqueue work shop.queues:worker``."""

from __future__ import annotations

import os

import django
from django.conf import settings
from sqlalchemy import URL, BigInteger, Identity, Integer, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import QueueMixin, QueueSession, Worker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

Key = BigInteger().with_variant(Integer, "sqlite")  # SQLite generates keys only for INTEGER columns
engine = create_engine(URL.create("sqlite", database=settings.DATABASES["default"]["NAME"]))
Session = sessionmaker(engine, class_=QueueSession)
worker = Worker(Session)


class Base(DeclarativeBase):
    """Tables that SQLAlchemy and Alembic create."""


class DjangoTable(DeclarativeBase):
    """The tables of Django that handlers use. Alembic does not see them."""


class Welcome(QueueMixin, Base):
    __tablename__ = "welcome"

    id: Mapped[int] = mapped_column(Key, Identity(), primary_key=True)
    customer_id: Mapped[int] = mapped_column(BigInteger)


class Customer(DjangoTable):
    __tablename__ = "shop_customer"

    id: Mapped[int] = mapped_column(Key, Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    greeting: Mapped[str | None] = mapped_column(String(200))


@worker.handler(Welcome)
def greet(session: QueueSession, welcome: Welcome) -> None:
    customer = session.get_one(Customer, welcome.customer_id)
    customer.greeting = f"Welcome, {customer.name}!"  # committed together with the completion


if __name__ == "__main__":
    Base.metadata.create_all(engine)  # in production, run alembic upgrade head
