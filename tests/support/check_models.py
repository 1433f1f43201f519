"""The models for the tests of `sqlqueue check`, in separate tables that the tests alter and drop."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Identity, MetaData, Sequence, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import LimitMixin, QueueMixin, QueueOptions, Rate, SlotMixin, TopicMixin


class Base(DeclarativeBase):
    pass


class Post(TopicMixin, Base):
    __tablename__ = "checked_post"
    __queue__ = QueueOptions(order_by=("subject",))
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    subject: Mapped[str] = mapped_column(String(100), default="")
    note: Mapped[str] = mapped_column(String(100), default="")


class EmptyBase(DeclarativeBase):
    """A base without a queue."""

    metadata = MetaData()


class Plain(EmptyBase):
    __tablename__ = "checked_plain"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class OwnBase(DeclarativeBase):
    pass


class Slip(TopicMixin, OwnBase):
    """A queue that deletes completed rows; on PostgreSQL its key is a serial with a sequence."""

    __tablename__ = "checked_slip"
    __queue__ = QueueOptions(on_complete="delete")
    id: Mapped[int] = mapped_column(Sequence("checked_slip_id", optional=True), primary_key=True)


class KeyedBase(DeclarativeBase):
    pass


class Shared(QueueMixin, KeyedBase):
    """A queue whose tenants take turns."""

    __tablename__ = "checked_shared"
    __queue__ = QueueOptions(fair="tenant")
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(20))


class CheckedSlot(SlotMixin, KeyedBase):
    __tablename__ = "checked_slot"


class Limited(LimitMixin, KeyedBase):
    """A queue whose keys have limits and rates."""

    __tablename__ = "checked_limited"
    __queue__ = QueueOptions(slots=CheckedSlot, limit=2, rate=Rate(9, per=timedelta(minutes=1)))
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Ordered(QueueMixin, KeyedBase):
    """A queue whose accounts keep their order."""

    __tablename__ = "checked_ordered"
    __queue__ = QueueOptions(sequential="account")
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account: Mapped[int]
