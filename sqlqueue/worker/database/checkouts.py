"""Tracks the connections that are checked out of a pool, and shuts them down."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from ..._support.processes import Socket, keep_alive
from ...dialects import adapter_for
from ...dialects.parts.network import Network, Undo
from ..concurrency.fair_lock import FairLock

_SOCKET, _OWNER, _UNDO = "sqlqueue socket", "sqlqueue owner", "sqlqueue undo"
"""Keys in the ``info`` of a pooled connection, which is kept for as long as it is open."""
CONNECT = timedelta(seconds=10)
"""The longest time for opening a connection, unless the application has set one."""
UNREACHABLE = timedelta(seconds=30)
"""The time after which commands abandon a host that no longer responds; workers use limits based on their leases."""


class CheckedOut:
    """A connection that is checked out of a pool."""

    def __init__(self, sock: Socket | None, proxy: Any) -> None:
        self._socket = sock
        self._proxy = proxy

    def shut_down(self) -> bool:
        """Shut the socket down, which wakes a thread that waits for it.  Returns false if no open socket is known."""
        return self._socket is not None and self._socket.shut_down()

    def unanswered(self) -> float:
        """Return for how many seconds the server has not responded to what was last sent, or 0 if that is unknown."""
        return 0 if self._socket is None else self._socket.unanswered()

    def detach(self) -> None:
        """Free its place in the pool for another connection: the thread that waits for this one may never return."""
        self._proxy.detach()


class Owner(Protocol):
    """Code that checks connections out of a pool and back in."""

    @property
    def call_limit(self) -> timedelta | None:
        """The time limit of a single call of the driver, or ``None``."""
        ...

    def checked_out(self, key: object, connection: CheckedOut | None) -> None:
        """Called at checkout.  ``connection`` is ``None`` without a network, where only locks can delay a response."""
        ...

    def checked_in(self, key: object) -> None:
        """Called at checkin."""
        ...

    def writes(self, turn: FairLock, *, is_async: bool) -> None:
        """Hold ``turn`` until a connection is checked in.  Called before each statement that writes.

        ``is_async``: whether the connection's driver is asynchronous, so that the caller runs in a greenlet.
        """
        ...


owner: ContextVar[Owner | None] = ContextVar("sqlqueue.owner", default=None)
"""The owner that checks out connections in this thread, or in this chain of coroutines."""
_single_writers: dict[Hashable, FairLock] = {}
"""For each database that allows one writer at a time, the lock for a turn to write in this process."""
_tracked: weakref.WeakKeyDictionary[Engine, _TrackedPool] = weakref.WeakKeyDictionary()


def observe(engine: Engine) -> None:
    """Add listeners to ``engine`` that do nothing until :func:`track` is called.

    Call it before other threads use the engine, if it is known by then: SQLAlchemy fails their connection attempts if
    listeners are added meanwhile.
    """
    if engine in _tracked:
        return
    pool = _tracked[engine] = _TrackedPool(adapter_for(engine.dialect).network)
    event.listen(engine, "do_connect", pool.on_connecting)
    event.listen(engine, "connect", pool.on_connect, insert=True)  # before statements that prepare the connection
    event.listen(engine, "checkout", pool.on_checkout)
    event.listen(engine, "checkin", pool.on_checkin)
    write_in_turn(engine)


def track(engine: Engine, within: timedelta) -> None:
    """Report connections of ``engine`` to their owners, and make the kernel close those that have been dead for
    ``within``.

    The driver abandons a connection attempt after that time, or after :data:`CONNECT`, unless the application has set a
    limit: nothing else can end the wait, which occupies a thread and a place in the pool.
    """
    observe(engine)
    pool = _tracked[engine]
    if pool.within is None:
        pool.within = within


def write_in_turn(engine: Engine) -> None:
    """Make owners take turns writing to a database that allows one writer at a time.

    The database itself makes writers poll, with growing pauses: of many threads, most would sleep while nothing is
    written.
    """
    transactions = adapter_for(engine.dialect).transactions
    written = transactions.single_writer(engine)
    if written is None:
        return
    lock = _single_writers.setdefault(written, FairLock())

    def before_execution(connection: Connection, cursor: object, statement: str, *rest: object) -> None:
        owned_by = owner.get()
        if owned_by is not None and transactions.begins_to_write(statement):
            owned_by.writes(lock, is_async=connection.dialect.is_async)

    event.listen(engine, "before_cursor_execute", before_execution)


def shut_down_idle(engines: Iterable[Engine]) -> None:
    """Shut down idle connections in the pools of ``engines``, even one that a pool tests before it hands it out.

    Connections of other engines stay open: their servers may still respond.
    """
    for engine in engines:
        if engine in _tracked:
            _tracked[engine].shut_down_idle()


class _TrackedPool:
    """The tracked connections of one engine."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.within: timedelta | None = None
        """The time limit of dead connections, or ``None`` if they are not tracked yet."""
        self._given: set[str] = set()
        """The arguments for drivers that the application has not set."""
        self._lock = threading.Lock()
        """Held to change and to copy the set of sockets."""
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()

    def on_connecting(self, dialect: Any, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        if self.within is None:
            return
        for name, limit in self._network.connect_limits(dialect.driver, min(self.within, CONNECT)).items():
            if name not in options:
                options[name] = limit
                self._given.add(name)

    def on_connect(self, _: object, record: Any) -> None:
        if self.within is None:
            return
        self._network.lift_limits(record.driver_connection, self._given)
        self._socket_of(record, self.within)

    def on_checkout(self, _: object, record: Any, proxy: Any) -> None:
        if self.within is None:
            return
        sock = self._socket_of(record, self.within)
        if sock is not None:
            sock.is_idle = False
        owned_by = owner.get()
        if owned_by is not None:
            record.info[_OWNER] = owned_by
            owned_by.checked_out(record, CheckedOut(sock, proxy) if self._network.is_there else None)
            if owned_by.call_limit is not None:
                record.info[_UNDO] = self._network.limit_calls(record.driver_connection, owned_by.call_limit)

    def on_checkin(self, _: object, record: Any) -> None:
        owned_by = record.info.pop(_OWNER, None)
        if owned_by is not None:
            owned_by.checked_in(record)
        undo: Undo | None = record.info.pop(_UNDO, None)
        if undo is not None:
            undo()
        sock = record.info.get(_SOCKET)
        if sock is not None:
            sock.is_idle = True

    def shut_down_idle(self) -> None:
        with self._lock:
            idle = [sock for sock in self._sockets if sock.is_idle]
        for sock in idle:
            sock.shut_down()

    def _socket_of(self, record: Any, within: timedelta) -> Socket | None:
        if _SOCKET not in record.info:
            record.info[_SOCKET] = self._open_socket(record.driver_connection, within)
        found: Socket | None = record.info[_SOCKET]
        return found

    def _open_socket(self, connection: Any, within: timedelta) -> Socket | None:
        try:
            descriptor = self._network.descriptor(connection) if self._network.is_there else None
            if descriptor is None:
                return None
            keep_alive(descriptor, within)
            sock = Socket(descriptor)
        except Exception:
            # a driver may raise anything if the connection was just lost; the code that uses it will notice
            return None
        with self._lock:
            self._sockets.add(sock)
        return sock
