"""Functions whose calls `sqlqueue enqueue` enqueues."""

from __future__ import annotations

from datetime import date

from sqlalchemy.orm import sessionmaker

from sqlqueue import Worker
from tests.support.models import Chore

worker = Worker(sessionmaker())


@worker.task(Chore, name="remind")
def remind(number: int, day: date | None = None) -> None:
    pass
