"""The measured tables, which are created for the measurement."""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import Any

from sqlalchemy import Identity, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import JobMixin, QueueMixin


class KeyKind(StrEnum):
    """The kind of primary key of the jobs."""

    INT = "int"
    UUID = "uuid"


class Base(DeclarativeBase):
    """The declarative base of the measured models."""


class Probe(QueueMixin, Base):
    """A task whose latency is measured."""

    __tablename__ = "sqlqueue_bench_probe"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Job(QueueMixin, Base):
    """A job whose key the server generates."""

    __tablename__ = "sqlqueue_bench_job"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    payload: Mapped[str] = mapped_column(Text)


class UuidJob(QueueMixin, Base):
    """A job whose key the client generates."""

    __tablename__ = "sqlqueue_bench_uuid_job"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    payload: Mapped[str] = mapped_column(Text)


class Note(Base):
    """A row of the application, written by a handler."""

    __tablename__ = "sqlqueue_bench_note"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    text: Mapped[str] = mapped_column(String(100))


class Call(JobMixin, Base):
    """A call of a function."""

    __tablename__ = "sqlqueue_bench_call"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


CALL = "call"
"""The name of the function that is called."""

JOBS: dict[KeyKind, type[Any]] = {KeyKind.INT: Job, KeyKind.UUID: UuidJob}


class _Plain(DeclarativeBase):
    pass


def without_mixin(model: type[Any]) -> type[Any]:
    """Return a plain model of the same table, as an application without sqlqueue would map it."""
    return type(f"Plain{model.__name__}", (_Plain,), {"__table__": model.__table__})


BY_HAND: dict[KeyKind, type[Any]] = {key: without_mixin(model) for key, model in JOBS.items()}
