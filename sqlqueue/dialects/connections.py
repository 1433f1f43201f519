"""What an engine does with connections: errors, transactions, time limits, dead peers, notifications."""

from __future__ import annotations

import math
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from traceback import walk_tb
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from .._support.errors import ArgumentError, SQLQueueError, SQLQueueWarning, UnsupportedIsolationError
from .._support.private import configured_level
from .._support.sockets import is_local
from ..queue.spec import Finding, QueueSpec, Severity
from .naming import Product

READ_COMMITTED = "READ COMMITTED"
BEGIN_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""The first statement of a transaction that runs at this level, whatever the level of others of its connection."""
AUTOCOMMIT = "AUTOCOMMIT"

Interrupt: TypeAlias = Callable[[bool], None]
"""A function that ends the statement that a connection is executing, from another thread; if called with true, it
closes the connection as well."""

FORMER = "sqlqueue_former_timeout"
"""The key in a connection's ``info`` of the driver's timeout, which an application may have set, before a limit."""

Undo: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement.  Rows are read one at a time, on demand."""

    columns: Sequence[tuple[str, str]] | None
    """Names and types; the type is empty if the driver gives none.  ``None`` if the statement returns no rows."""
    rows: Iterable[Sequence[Any]]
    """The rows, read from the server during iteration."""
    row_count: int
    """The number of rows that a statement without a result changed."""


class Listener:
    """Receives notifications on a dedicated driver connection, with one pair of methods or the other."""

    def listen(self, connection: Any) -> None:
        """Start listening."""
        raise NotImplementedError

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait up to ``seconds`` for notifications; return their names.

        Raises the driver's error if the connection is lost.
        """
        raise NotImplementedError

    async def listen_async(self, connection: Any) -> None:
        """Start listening on the connection of an asyncio driver."""
        raise NotImplementedError

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait for notifications like :meth:`news`, on the connection of an asyncio driver."""
        raise NotImplementedError


class Connections(ABC):
    """An engine's errors, transactions, time limits, network and notifications, as far as drivers differ."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self._warned: weakref.WeakSet[Dialect] = weakref.WeakSet()

    # -- classifies the errors of drivers by their codes

    transient_errors: ClassVar[Collection[Any]]
    """Codes of failures after which a retry of the transaction may succeed: deadlocks, serialization failures, lock
    timeouts."""
    outage_errors: ClassVar[Collection[Any]]
    """Codes of a server that is unreachable, shutting down or starting."""
    duplicate_errors: ClassVar[Collection[Any]]
    """Codes of violated unique keys."""
    reference_errors: ClassVar[Collection[Any]]
    """Codes of foreign keys that prevented the deletion of a row."""
    denied_errors: ClassVar[Collection[Any]] = ()
    """Codes of missing privileges."""
    read_only_errors: ClassVar[Collection[Any]] = ()
    """Codes of writes to a server, database or transaction that is read-only, whatever the account's privileges."""
    lost_savepoint_errors: ClassVar[Collection[Any]] = ()
    """Codes of a missing savepoint, whose transaction was ended by an earlier error."""

    @abstractmethod
    def error_code(self, error: DBAPIError) -> Any:
        """Return the driver's code of an error, or ``None`` if it has none."""

    def error_codes(self, error: DBAPIError) -> Collection[Any]:
        """Return all codes of an error, if there are several: the server's and the driver's."""
        return (self.error_code(error),)

    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the transaction failed because of concurrent ones, so that a retry may succeed."""
        return self._has(self.reason(error), self.transient_errors)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error``, which may be any exception, says that the connection was lost or cannot be
        established."""
        told = as_driver_error(error)
        return told is not None and self.has_lost(told)

    def has_lost(self, error: DBAPIError) -> bool:
        """Return whether an error of the driver is an outage; overridden by engines, see :meth:`is_outage`."""
        return error.connection_invalidated or self._has(error, self.outage_errors) or comes_from_network(error)

    def is_temporary(self, error: DBAPIError) -> bool:
        """Return whether an error is about the server or the connection rather than the statement, and may thus pass.

        By the code first: drivers give the same error different classes, and some have no class for deadlocks.
        """
        told = self.is_outage(error) or self.is_transient(error)
        return told or isinstance(error, (OperationalError, InterfaceError, InternalError))

    def is_rejection(self, error: BaseException) -> bool:
        """Return whether the server or the driver does not accept a row or a value, so that no retry would succeed."""
        told = as_driver_error(error)
        # by code, not by class; and a statement that took too long for a driver, which then gave up the connection, is
        # not at fault
        return (
            told is not None
            and not told.connection_invalidated
            and not self.is_outage(told)
            and not self.is_transient(told)
        )

    def is_duplicate(self, error: DBAPIError) -> bool:
        """Return whether a unique key was violated."""
        return self._has(error, self.duplicate_errors)

    def is_referenced(self, error: DBAPIError) -> bool:
        """Return whether a foreign key prevented the deletion of a row."""
        return self._has(error, self.reference_errors)

    def is_denied(self, error: DBAPIError) -> bool:
        """Return whether the account lacks a privilege."""
        return self._has(error, self.denied_errors)

    def is_read_only(self, error: DBAPIError) -> bool:
        """Return whether the server, the database or the transaction is read-only."""
        return self._has(error, self.read_only_errors)

    def is_of_row(self, error: Exception) -> bool:
        """Return whether a row that the server returned could not be turned into Python objects.

        Not so errors of the server, of SQLAlchemy and of this library, which would be the same for every row.
        """
        if isinstance(error, DBAPIError):  # from the driver if it has no code
            return self.error_code(error) in (None, -1) and not self.is_outage(error)
        return not isinstance(error, (SQLAlchemyError, SQLQueueError, OSError, MemoryError))

    def reason(self, error: DBAPIError) -> DBAPIError:
        """Return the error itself or, for a lost savepoint, the deadlock that removed it."""
        if self._has(error, self.lost_savepoint_errors):
            for before in _before(error):
                if self._has(before, self.transient_errors):
                    return before
        return error

    def _has(self, error: DBAPIError, codes: Collection[Any]) -> bool:
        return any(code in codes for code in self.error_codes(error))

    # -- begins transactions: isolation levels, savepoints; by default, those of standard SQL

    one_writer: ClassVar[bool] = False
    """Whether the engine allows one writer at a time, so that claims wait for each other, and any level is harmless.

    :meth:`begin_to_claim` then makes the transaction the writer, even if the driver commits each statement.
    """
    changes_unseen: ClassVar[bool] = False
    """Whether a transaction with an old snapshot can change rows committed since, instead of failing."""
    snapshots_conflict: ClassVar[bool] = False
    """Whether a transaction above READ COMMITTED cannot change rows that changed since its first read, and can set the
    level of itself alone by :data:`BEGIN_READ_COMMITTED`."""
    ends_with_error: ClassVar[bool] = False
    """Whether an error ends the transaction, unless it is rolled back to a savepoint."""
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED, "READ UNCOMMITTED")
    """Isolation levels at which a claim neither fails because of other transactions nor blocks them."""
    short_lock_wait: ClassVar[str | None] = None
    """The statement that limits a session's wait for locks to one second."""
    refused_levels: ClassVar[Collection[str]] = ()
    """Isolation levels at which the engine rejects a claim, or a claim would be wrong."""

    def begin_to_claim(self, connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
        """Prepare a transaction for a claim.  ``fresh``: nothing has been sent in it yet."""

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        """Return a context in which a statement can fail without affecting the rest of the transaction."""
        return session.begin_nested()

    def single_writer(self, engine: Engine) -> Hashable | None:
        """Return a key for the database, if only one transaction at a time writes to it; otherwise ``None``."""
        return None

    def begins_to_write(self, statement: str) -> bool:
        """Return whether ``statement`` makes its transaction the single writer, if it is not already."""
        return False

    def before_disconnect(self, connection: Connection, cursor: Any) -> None:
        """Called before SQLAlchemy closes a connection without a rollback, after a cancellation or a lost connection.

        ``cursor`` is that of the statement that failed, or ``None``.
        """

    def level(self, source: Engine | Connection) -> str | None:
        """Return the isolation level of transactions, as far as it is known without querying the server."""
        if self.one_writer:
            return READ_COMMITTED
        # the server's default is known once the first connection has been opened
        return self.chosen_level(source) or getattr(source.dialect, "default_isolation_level", None)

    def chosen_level(self, source: Engine | Connection) -> str | None:
        """Return the isolation level that the application has configured."""
        options = source.get_execution_options()
        return options.get("isolation_level") or configured_level(source.dialect)

    def present_level(self, connection: Connection) -> str | None:
        """Return the isolation level at which a claim on this connection would run now."""
        detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # SQLAlchemy 2.0.43
        if detect is not None and not self.one_writer:
            # however that was configured
            with suppress(NotImplementedError):
                if detect(connection.connection.dbapi_connection):
                    return AUTOCOMMIT
        return self.level(connection)

    def level_of_handlers(self, engine: Engine) -> str | None:
        """Return the statement with which a handler's transaction begins at a server whose level is another one.

        Otherwise a heartbeat that changes its row would make the transaction fail.  ``None`` if that does not happen,
        or if the application has chosen the level.
        """
        return BEGIN_READ_COMMITTED if self.snapshots_conflict and self.chosen_level(engine) is None else None

    def may_change_unseen(self, connection: Connection) -> bool:
        """Return whether this transaction may change versions of rows that its snapshot does not contain."""
        return self.changes_unseen and self.level(connection) not in self.harmless_levels

    def check_level(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedIsolationError` if a claim would be wrong; warn once if it may fail."""
        level = self.present_level(connection)
        if level is None or level in self.harmless_levels:
            return
        advice = f"claim first in a transaction, or create_engine(..., isolation_level={READ_COMMITTED!r})"
        if level == AUTOCOMMIT or level in self.refused_levels:
            raise UnsupportedIsolationError(
                f"a claim on {self.product.name} cannot run at {level}, the isolation level of this transaction:"
                f" {advice}",
                dialect=self.product.dialect,
                level=level,
            )
        if connection.dialect not in self._warned:
            self._warned.add(connection.dialect)
            text = f"a claim in a {level} transaction can fail or block others on {self.product.name}: {advice}"
            warnings.warn(text, SQLQueueWarning, stacklevel=2)

    def alone(self, connection: Connection) -> AbstractContextManager[object]:
        """A context for one statement, which is committed at once if that saves round trips, and if nothing has been
        sent in the transaction yet: what listeners of the application send then, such as settings for row-level
        security, must apply to the statement."""
        return nullcontext()

    # -- executes the statements of SQL tasks, which users write: time limits, rows and interruption

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """The drivers that reject several statements in one request, with their connect arguments; ``None``: all."""

    def request_arguments(self, url: URL) -> dict[str, Any]:
        """Return the connect arguments for one request; raise :class:`.ArgumentError` for an unsuitable driver."""
        driver, dialect = url.get_driver_name(), url.get_dialect()
        if dialect.is_async:
            raise ArgumentError(f"{url.drivername} is an asyncio driver: requests are executed in threads")
        if self.request_drivers is None:
            return {}
        if driver not in self.request_drivers:
            known = ", ".join(f"{url.get_backend_name()}+{name}" for name in self.request_drivers)
            raise ArgumentError(f"{url.drivername} does not reject several statements in one request: use {known}")
        return dict(self.request_drivers[driver])

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Make the server or the driver end statements that take longer than ``timeout``, as far as possible.

        The connection serves one request and is then closed. The statement itself can change the server's setting: see
        :meth:`interruption`.
        """

    def lift_time_limit(self, connection: Connection) -> None:
        """Undo :meth:`limit_time`, unless the end of the transaction does."""

    @contextmanager
    def time_limit(self, connection: Connection, timeout: timedelta) -> Iterator[None]:
        """Return a context in which :meth:`limit_time` applies, for a connection that others use afterwards."""
        self.limit_time(connection, timeout)
        try:
            yield
        finally:
            try:
                self.lift_time_limit(connection)
            except SQLAlchemyError:  # the connection is lost: the pool must not hand it out with the limit
                connection.invalidate()

    def interruption(self, connection: Connection) -> Interrupt | None:
        """Return a function that ends the statement, whatever settings it has changed.

        Return ``None`` if statements cannot change the limit that :meth:`limit_time` sets.
        """
        return None

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        """Execute one statement, and stream its rows.

        Raises SQLAlchemy's errors, including while rows are read.
        """
        # no parameters, so that % is not special; streaming, so that the driver does not read all rows at once
        streaming = connection.execution_options(no_parameters=True, stream_results=True, max_row_buffer=1)
        with streaming.exec_driver_sql(request) as result:
            if not result.returns_rows or result.cursor is None:
                yield StatementResult(None, (), result.rowcount)
                return
            columns = [(name, self.type_name(code)) for name, code, *_ in result.cursor.description]
            yield StatementResult(columns, result, 0)

    def type_name(self, code: Any) -> str:
        """Return the name of a result column's type, from the driver's type code."""
        return str(getattr(code, "name", None) or getattr(code, "__name__", None) or ("" if code is None else code))

    # -- the network between a driver and the server, on which a driver may wait forever for a response

    has_network: ClassVar[bool] = True
    """Whether there is a network: without one, only a lock can delay a response."""
    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {}
    """By driver, the arguments of ``connect`` that limit, in seconds, how long it waits for the server."""

    def connect_limits(self, driver: str, within: timedelta) -> Mapping[str, int]:
        """Return the arguments that make a driver abandon a connection attempt that takes too long; none if unknown."""
        return dict.fromkeys(self.connect_timeouts.get(driver, ()), math.ceil(within.total_seconds()))

    def network_findings(self, connection: Connection) -> Iterator[Finding]:
        """Yield notes about missing limits on how long the driver and the server wait for each other. Yields none for
        connections without a network. Workers do not need these limits; other programs, and the server, do.
        """
        driver = connection.connection.driver_connection
        descriptor = self.descriptor(driver) if self.has_network else None
        if not self.has_network or (descriptor is not None and is_local(descriptor)):
            return
        advice = self.driver_advice(driver)
        if advice is not None:
            yield _note("driver-timeouts", _UNANSWERED, advice)
        yield from (_note("server-timeouts", *found) for found in self.server_advice(connection))

    def driver_advice(self, connection: Any) -> str | None:
        """Return the settings to use if this driver's connection waits forever for a silent server; ``None``
        otherwise."""
        return None

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        """Yield each setting that makes the server wait forever for a silent client, and the fix."""
        return iter(())

    def lift_connect_limits(self, connection: Any, limits: Collection[str]) -> None:
        """Lift the limits of :meth:`connect_limits` that this driver would also apply to statements."""

    def descriptor(self, connection: Any) -> int | None:
        """Return the file descriptor of a driver's open connection; ``None`` if the driver does not expose it."""
        tell = getattr(connection, "fileno", None)
        return None if tell is None else int(tell())

    def limit_calls(self, connection: Any, within: timedelta) -> Undo | None:
        """Make the driver end calls that take longer than ``within``, if it does not expose its socket. Returns a
        function that lifts the limit; ``None`` if there is no limit."""
        return None

    # -- notifies other connections of new tasks, through the server; on most engines, workers poll instead

    listeners: ClassVar[Mapping[str, type[Listener]]] = {}
    """By driver, what receives notifications; empty on engines that have none."""

    def notify(self, connection: Connection, name: str, *, elsewhere: bool = False) -> None:
        """Notify the listeners for ``name`` on other connections when this transaction commits; those that are
        ``elsewhere`` if this process is told otherwise."""

    def listener(self, driver: str) -> Listener | None:
        """Return the listener for this driver, or ``None`` if the driver cannot listen."""
        made = self.listeners.get(driver)
        return None if made is None else made()


# -- the errors of drivers, which SQLAlchemy wraps, or not -------------------------------------------------------------

_CALLERS = ("sqlalchemy.dialects.", "sqlalchemy.connectors.", "sqlalchemy.engine.default", "sqlalchemy.engine.cursor")
"""The modules of SQLAlchemy that call drivers, apart from :mod:`sqlalchemy.pool`, which calls an engine's creator."""


def first_argument(error: DBAPIError) -> Any:
    """Return the first argument of the driver's error, where most drivers store the code."""
    original: Any = error.orig
    return original.args[0] if original.args else None


def as_driver_error(error: BaseException) -> DBAPIError | None:
    """Return an error of the driver as SQLAlchemy wraps it; ``None`` for errors of anything else.

    Some drivers raise errors of Python itself while they connect or wait, such as asyncpg's :class:`TimeoutError`, and
    SQLAlchemy passes them on.  Only the traceback distinguishes them from those of an application's own requests.
    """
    if isinstance(error, DBAPIError):
        return error
    if not isinstance(error, Exception) or isinstance(error, SQLAlchemyError) or not _comes_from_driver(error):
        return None
    return DBAPIError(None, None, error, connection_invalidated=isinstance(error, OSError))


def _comes_from_driver(error: Exception) -> bool:
    """Return whether SQLAlchemy called a driver, rather than a listener or a type of the application, which then
    raised."""
    passed = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    # its greenlets, in sqlalchemy.util, stand between each asyncio driver and its caller
    own = [name for name in passed if name.startswith("sqlalchemy.") and not name.startswith("sqlalchemy.util.")]
    return bool(own) and own[-1].startswith((*_CALLERS, "sqlalchemy.pool."))


def comes_from_network(error: DBAPIError) -> bool:
    """Return whether the driver raised its error from one of a socket, whatever code it has chosen for that."""
    cause: BaseException | None = error.orig
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None


@contextmanager
def wrapping(dialect: Dialect, connection: Any = None, statement: str | None = None) -> Iterator[None]:
    """Wrap the driver's own errors in :class:`sqlalchemy.exc.DBAPIError`, where SQLAlchemy does not.

    It does not while it sets an isolation level, which is the first statement to fail on a dead connection.
    ``connection``: the driver's, if there is one; with some drivers, its state shows that it is dead. ``statement``:
    the SQL that the error names.
    """
    driver = dialect.loaded_dbapi.Error
    try:
        yield
    except driver as error:
        died = dialect.is_disconnect(error, connection, None)
        raise DBAPIError.instance(
            statement, None, error, driver, connection_invalidated=died, dialect=dialect
        ) from error


def _before(error: BaseException) -> Iterator[DBAPIError]:
    """Yield the errors that were being handled when ``error`` was raised."""
    before = error.__context__
    while before is not None:
        if isinstance(before, DBAPIError):
            yield before
        before = before.__context__


# -- what the methods above use ----------------------------------------------------------------------------------------

_UNANSWERED = (
    "if the network drops this connection without an error, a program can wait for a response for hours: workers have"
    " their own deadlines, other programs do not"
)


def milliseconds(timeout: timedelta) -> int:
    """Convert to milliseconds, at least 1: engines read 0 as unlimited."""
    return max(int(timeout.total_seconds() * 1000), 1)


def _note(code: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.NOTE, code=code, message=message, fix=fix)


def socket_of(transport: Any) -> int | None:
    """Return the descriptor of an asyncio transport's socket."""
    found = transport.get_extra_info("socket")
    return None if found is None else int(found.fileno())
