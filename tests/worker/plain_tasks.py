"""Tasks of an application that may not have pydantic."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import JobMixin, QueueSession, Worker

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


@dataclass
class Point:
    x: int


worker = Worker(sessionmaker(class_=QueueSession))


def plain(session: Session, point: Point, names: list[str | None]) -> None: ...
def moment(at: datetime, point: Point, key: uuid.UUID) -> None: ...
