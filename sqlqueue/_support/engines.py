"""Engines and sessions that do not use the application's pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session


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


@contextmanager
def separate_session(session: Session, bind_arguments: dict[str, Any]) -> Iterator[Session]:
    """Open a session on a separate connection, outside the pool, which may be exhausted."""
    engine = with_own_pool(session.connection(bind_arguments))
    try:
        with Session(engine) as own:
            yield own
    finally:
        engine.dispose()
