"""The connections and tables of the proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from ...dialects import adapter_for
from ..database import connect, created_tables, reached
from .models import ACCOUNTS, Account, Base


def connected(url: URL) -> Engine:
    """Return an engine whose transactions wait only briefly for locks, on engines where sessions can set a limit."""
    engine = connect(url)
    impatient = adapter_for(engine.dialect).transactions.impatient
    if impatient is not None:

        @event.listens_for(engine, "connect")
        def set_patience(connection: DBAPIConnection, _: object) -> None:
            cursor = connection.cursor()
            cursor.execute(impatient)
            cursor.close()
            connection.commit()

    return engine


@contextmanager
def tables(url: str, *, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the proof's own tables, which are dropped at the end.

    Raises :class:`.EvaluationError` if tables with these names exist, unless ``drop`` is given.
    """
    with ExitStack() as stack:
        engine = reached(url)
        stack.callback(engine.dispose)
        advice = "if an interrupted run left them behind, add --drop"
        stack.enter_context(created_tables(engine, Base.metadata, drop=drop, advice=advice))
        with Session(engine) as session, session.begin():
            session.add_all(Account(id=number, balance=0) for number in range(1, ACCOUNTS + 1))
        yield engine
