"""The connection of a session's operation, and the adapter of its engine."""

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
    """Return the session behind a registry such as Flask-SQLAlchemy's ``db.session``, or a plain session itself.

    Raises :class:`.ArgumentError` for other objects, including asyncio sessions.
    """
    if isinstance(session, scoped_session):
        return cast(Session, session())
    if isinstance(session, Session):
        return session
    advice = (
        ", it is an asyncio one: await session.run_sync(sqlqueue.claim, Task)" if hasattr(session, "run_sync") else ""
    )
    raise ArgumentError(f"{session!r} is not a sqlalchemy.orm.Session{advice}")


def open_(session: Session, spec: QueueSpec, *, claims: bool = False, meets: bool = False) -> Adapter:
    """Begin a transaction on the engine of ``spec``, flush the session, and return the engine's adapter.

    ``claims``, ``meets``: whether the operation claims, or may wait for rows that other transactions have locked; the
    adapter then sets or checks the isolation level.  Raises :class:`.UnsupportedDialectError` and
    :class:`.UnsupportedIsolationError`.
    """
    bind = session.get_bind(**spec.bind_arguments)
    # do not change the settings of an application's own Connection
    fresh = bind.engine not in ledger_of(session).begun and not isinstance(bind, Connection)
    adapter = adapter_for(bind.dialect)
    connection = adapter.connect(session, spec, fresh=fresh, claims=claims, meets=meets)
    adapter = adapter_for(connection.dialect)
    adapter.verify(connection)
    session.flush()
    return adapter


def open_to_claim(session: Session, spec: QueueSpec) -> Adapter:
    """Return the adapter like :func:`open_`, for operations that load the instances of locked rows.

    Raises :class:`.ArgumentError` also if the session reads from another engine than it writes to.
    """
    check_engine(session, spec, spec.selecting)
    return open_(session, spec, claims=True)


def check_engine(session: Session, spec: QueueSpec, statement: Any) -> None:
    """Raise :class:`.ArgumentError` if the session sends ``statement`` to another engine than writes.

    The ORM passes its own statements to ``get_bind``, regardless of the clause in the bind arguments.
    """
    if session.get_bind(mapper=spec.mapper, clause=statement) is not session.get_bind(**spec.bind_arguments):
        raise ArgumentError(
            f"this session has another engine for the {statement.__visit_name__.upper()} of {spec.entity.__name__}"
            " than for its UPDATE, see its get_bind: use a session with one engine for both"
        )


def default_claimer() -> str:
    """Return ``host:pid``, the claimer's name unless the caller gives one."""
    return f"{socket.gethostname()}:{os.getpid()}"
