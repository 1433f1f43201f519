"""From any session to a connection that can carry the operation, and the adapter of its engine."""

from __future__ import annotations

import os
import socket
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from .._support.exc import ArgumentError
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..queue.spec import QueueSpec
from .claims import ledger_of

AnySession: TypeAlias = Session | scoped_session[Any]


def session_of(session: AnySession) -> Session:
    """The session behind a registry such as Flask-SQLAlchemy's ``db.session``."""
    if isinstance(session, scoped_session):
        return cast(Session, session())
    if isinstance(session, Session):
        return session
    advice = (
        ", it is an asyncio one: await session.run_sync(sqlqueue.claim, Task)" if hasattr(session, "run_sync") else ""
    )
    raise ArgumentError(f"{session!r} is not a sqlalchemy.orm.Session{advice}")


def open_(session: Session, spec: QueueSpec, *, claims: bool = False, meets: bool = False) -> Adapter:
    """Begin on the engine of ``spec``, flush what the session has pending, and say who speaks to that engine."""
    bind = session.get_bind(**spec.bind_arguments)
    # an application's own Connection is not ours to set up
    fresh = bind.engine not in ledger_of(session).begun and not isinstance(bind, Connection)
    adapter = adapter_for(bind.dialect)
    connection = adapter.connect(session, spec, fresh=fresh, claims=claims, meets=meets)
    adapter = adapter_for(connection.dialect)
    adapter.verify(connection)
    session.flush()
    return adapter


def open_to_claim(session: Session, spec: QueueSpec) -> Adapter:
    """:func:`open_` for who loads the instances of what it has locked."""
    check_engine(session, spec, spec.selecting)
    return open_(session, spec, claims=True)


def check_engine(session: Session, spec: QueueSpec, statement: Any) -> None:
    """:class:`.ArgumentError` if ``statement`` would not go where writes go.

    The ORM hands its own statements to ``get_bind``, whatever clause was given with them.
    """
    if session.get_bind(mapper=spec.mapper, clause=statement) is not session.get_bind(**spec.bind_arguments):
        raise ArgumentError(
            f"this session has another engine for the {statement.__visit_name__.upper()} of {spec.entity.__name__}"
            " than for its UPDATE, see its get_bind: give one that has one engine for both"
        )


def default_claimer() -> str:
    """``host:pid``, unless the caller names itself."""
    return f"{socket.gethostname()}:{os.getpid()}"
