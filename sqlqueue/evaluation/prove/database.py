"""The connections and tables of the proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import URL, Engine, event, inspect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from ...dialects import adapter_for
from ..database import connect, reached
from ..errors import EvaluationError
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

    Raises :class:`EvaluationError` if tables with these names exist, unless ``drop`` is given.
    """
    with ExitStack() as stack:
        engine = reached(url)
        stack.callback(engine.dispose)
        present = [name for name in Base.metadata.tables if inspect(engine).has_table(name)]
        if present and not drop:
            names = ", ".join(present)
            raise EvaluationError(f"{names}: these tables exist. If an interrupted run left them behind, add --drop")
        Base.metadata.drop_all(engine)
        stack.callback(Base.metadata.drop_all, engine)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all(Account(id=number, balance=0) for number in range(1, ACCOUNTS + 1))
        yield engine
