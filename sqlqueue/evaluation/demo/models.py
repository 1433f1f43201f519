"""The demo's tables: the files, which are the queue, and a receipt for each completed attempt."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, ForeignKey, Identity, Integer, String, UnicodeText
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ExponentialBackoff, QueueMixin, QueueOptions


class Base(DeclarativeBase):
    """The declarative base of the demo's models."""


class File(QueueMixin, Base):
    """A file below the folder: an ordinary model whose rows are the tasks."""

    __tablename__ = "sqlqueue_demo_file"
    __queue__ = QueueOptions(
        lease=timedelta(seconds=2),
        max_attempts=4,
        retry=ExponentialBackoff(timedelta(milliseconds=100), factor=2),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    path: Mapped[str] = mapped_column(UnicodeText)
    """The path relative to the folder."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(String(64))
    lines: Mapped[int | None] = mapped_column(BigInteger)
    words: Mapped[int | None] = mapped_column(BigInteger)


class Receipt(Base):
    """A receipt of a file, written only in the transaction that completes it.

    The key allows several receipts for a file: they reveal that a file was done twice, instead of preventing it.
    """

    __tablename__ = "sqlqueue_demo_receipt"

    file_id: Mapped[int] = mapped_column(ForeignKey(File.id), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    worker: Mapped[str] = mapped_column(String(40))
