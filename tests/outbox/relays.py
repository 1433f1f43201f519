"""The messages that remain in the outbox."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from tests.support.harness import Database
from tests.support.models import Outgoing
from tests.support.rows import count

STRAIGHT_ON = timedelta(milliseconds=50)


def states(db: Database) -> dict[int, str]:
    with db.engine.connect() as connection:
        return {row.id: row.status for row in connection.execute(select(Outgoing.id, Outgoing.status))}


def drained(db: Database) -> bool:
    return not count(db, Outgoing)
