"""The models for the tests of `sqlqueue check`, in separate tables that the tests alter and drop."""

from __future__ import annotations

from sqlalchemy import Identity, MetaData, Sequence, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueOptions, TopicMixin


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
