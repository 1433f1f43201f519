"""The contents of a table after enqueue()."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from tests.support.harness import Database
from tests.support.models import Base

M = TypeVar("M", bound=Base)
FUTURE = datetime(2090, 1, 1, tzinfo=UTC)


def rows(db: Database, model: type[M]) -> list[M]:
    with Session(db.engine) as session:
        return list(session.scalars(select(model).order_by(*model.__table__.primary_key)))
