"""Engines and sessions that do not use the application's pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, SingletonThreadPool, StaticPool, event
from sqlalchemy.orm import Session, SessionTransaction


def with_own_pool(shared: Engine | Connection) -> Engine:
    """Return an engine with its own pool and the settings and events of ``shared``."""
    engine = shared.engine
    return Engine(
        engine.pool.recreate(),
        engine.dialect,
        engine.url,
        execution_options=shared.get_execution_options(),
        hide_parameters=engine.hide_parameters,
    )


def has_one_connection(engine: Engine) -> bool:
    """Return whether the pool has one connection for all, or for each thread: another one might show another database,
    if it is in memory."""
    return isinstance(engine.pool, (SingletonThreadPool, StaticPool))


@contextmanager
def separate_session(session: Session, bind_arguments: dict[str, Any]) -> Iterator[Session]:
    """Open a session on a separate connection, outside the pool, which may be exhausted.

    The ``after_begin`` listeners of ``session`` prepare this connection, too: they may choose a tenant or a schema.
    """
    engine = with_own_pool(session.connection(bind_arguments))
    try:
        with Session(engine) as own:

            @event.listens_for(own, "after_begin")
            def prepare(_: Session, transaction: SessionTransaction, connection: Connection) -> None:
                for listener in session.dispatch.after_begin:
                    listener(session, transaction, connection)

            yield own
    finally:
        engine.dispose()
