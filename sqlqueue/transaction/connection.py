"""The connection of a session's operation, and the adapter of its engine."""

from __future__ import annotations

import os
from enum import Enum, auto
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import immutabledict

from .._support.errors import ArgumentError
from .._support.private import is_flushing
from .._support.texts import host_name
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..dialects.connections import READ_COMMITTED, wrapping
from ..queue.spec import QueueSpec
from .ledger import ledger_of

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


class Access(Enum):
    """How an operation accesses rows that other transactions may have locked."""

    READ = auto()
    """The operation waits for none of them."""
    CHANGE = auto()
    """The operation may wait for some of them."""
    SKIP = auto()
    """The operation locks rows, and skips those that others have locked."""
    CLAIM = auto()
    """Like :attr:`SKIP`, and the operation loads the instances of the rows that it locks."""
    HOLD = auto()
    """Like :attr:`CLAIM`, and only these locks keep others out until the transaction ends."""


_LOADING = (Access.CLAIM, Access.HOLD)
_SKIPPING = (Access.SKIP, *_LOADING)


def open_(session: Session, spec: QueueSpec, access: Access = Access.READ) -> Adapter:
    """Begin a transaction on the engine of ``spec``, flush the session, and return the engine's adapter.

    Checks once per transaction what stays the same in it: the server, the isolation level that ``access`` needs, which
    the adapter sets if it still can, and whether locks hold here if ``access`` relies on them.  Raises
    :class:`.UnsupportedDialectError`, :class:`.UnsupportedIsolationError`, and :class:`.ArgumentError` if the session
    uses different engines for the reads and writes of a claim.
    """
    bind = session.get_bind(**spec.bind_arguments)
    ledger = ledger_of(session)
    adapter = ledger.opened.get((bind, spec, access))
    if adapter is None:
        # do not change the settings of an application's own Connection
        fresh = bind.engine not in ledger.begun and not isinstance(bind, Connection)
        adapter = ledger.opened[bind, spec, access] = _begin(session, spec, access, bind, fresh=fresh)
    elif access in _SKIPPING:  # the driver's transaction can end before the session's: on SQLite, with a savepoint
        adapter.connections.begin_to_claim(session.connection(spec.bind_arguments), spec, fresh=False)
    if not is_flushing(session):
        session.flush()
    return adapter


def _begin(session: Session, spec: QueueSpec, access: Access, bind: Engine | Connection, *, fresh: bool) -> Adapter:
    """Begin the session's transaction on ``bind``, at an isolation level that suits ``access``; return the adapter.

    ``fresh``: nothing has been sent yet in this transaction, so its isolation level can still be chosen.
    """
    if access in _LOADING:
        check_engine(session, spec, spec.selecting)
    connections = adapter_for(bind.dialect).connections
    if access is not Access.READ and fresh and connections.level(bind.engine) != READ_COMMITTED:
        with wrapping(bind.dialect):
            _begin_read_committed(session, spec)
    connection = session.connection(spec.bind_arguments)
    if access in _SKIPPING:
        connections.check_level(connection)
        connections.begin_to_claim(connection, spec, fresh=fresh)
    adapter = adapter_for(connection.dialect)  # knows more after the first connection of an engine
    adapter.inspection.verify(connection)
    if access is Access.HOLD:
        adapter.inspection.check_locks(connection)
    return adapter


def _begin_read_committed(session: Session, spec: QueueSpec) -> None:
    options = immutabledict({"isolation_level": READ_COMMITTED})
    outermost = session.get_transaction()
    if outermost is None or not session.in_nested_transaction():
        session.connection(spec.bind_arguments, execution_options=options)
        return
    # SQLAlchemy 2.0 cannot do that from within a savepoint
    outermost.connection(execution_options=options, bindkey=spec.mapper, clause=spec.bind_arguments["clause"])


def check_engine(session: Session, spec: QueueSpec, statement: Any) -> None:
    """Raise :class:`.ArgumentError` if the session sends ``statement`` to an engine other than the one for writes.

    The ORM passes its own statements to ``get_bind``, regardless of the clause in the bind arguments.
    """
    if session.get_bind(mapper=spec.mapper, clause=statement) is not session.get_bind(**spec.bind_arguments):
        raise ArgumentError(
            f"this session uses different engines for the {statement.__visit_name__.upper()} and the UPDATE of"
            f" {spec.entity.__name__}, see its get_bind(): use a session with one engine for both"
        )


def default_claimer() -> str:
    """Return ``host:pid``, the claimer's name unless the caller gives one, in ASCII: any database can store it."""
    return f"{host_name()}:{os.getpid()}"
