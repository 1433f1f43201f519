"""The table that is measured, made for the occasion."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin


class Base(DeclarativeBase):
    pass


class Probe(QueueMixin, Base):
    __tablename__ = "sqlqueue_bench_probe"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
