"""Which connections of a pool are in whose hands, and the means to shut each of them down."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from ..._support.sockets import Wire, keep_alive
from ...dialects import adapter_for
from ...dialects.parts.network import Network, Undo
from ..concurrency.fair_lock import FairLock

_WIRE, _TAKER, _UNDO = "sqlqueue wire", "sqlqueue taker", "sqlqueue undo"
"""Keys of what is known of a pooled connection, for as long as it is open."""
CONNECT = timedelta(seconds=10)
"""The longest time for opening a connection, where the application has chosen none."""


class Line:
    """A connection that was taken from a pool."""

    def __init__(self, wire: Wire | None, proxy: Any) -> None:
        self._wire = wire
        self._proxy = proxy

    def cut(self) -> bool:
        """Shut the connection down, which wakes whoever waits for it.  False if its driver tells no open socket."""
        return self._wire is not None and self._wire.cut()

    def abandon(self) -> None:
        """Give its place in the pool to another connection: whoever waits for this one may never come back."""
        self._proxy.detach()


class Taker(Protocol):
    """Whoever takes connections from a pool, and gives them back."""

    @property
    def call_limit(self) -> timedelta | None:
        """How long a single call of the driver may take, ``None`` for any time."""
        ...

    def takes(self, key: object, line: Line | None) -> None:
        """``line`` is ``None`` where there is no network: such a connection only ever waits for locks."""
        ...

    def gives_back(self, key: object) -> None: ...

    def writes(self, turn: FairLock) -> None:
        """Hold ``turn`` until a connection is given back.  Called before each statement that writes."""
        ...


taker: ContextVar[Taker | None] = ContextVar("sqlqueue.taker", default=None)
"""Whoever takes connections in this thread, or on this path of coroutines."""
_single_writers: dict[Hashable, FairLock] = {}
"""What has one writer at a time, and whose turn it is in this process."""
_followed: weakref.WeakKeyDictionary[Engine, _Lines] = weakref.WeakKeyDictionary()


def follow(engine: Engine, within: timedelta) -> None:
    """Let takers know the connections of ``engine``, and the kernel end those that are dead for ``within``.

    A connection that is not made in that time, or in :data:`CONNECT`, is given up by the driver, unless the application
    has set a limit: nothing else can end the wait for it, which keeps a thread and a place in the pool.
    """
    if engine in _followed:
        return
    lines = _followed[engine] = _Lines(adapter_for(engine.dialect).network, within)
    event.listen(engine, "do_connect", lines.connecting)
    event.listen(engine, "connect", lines.connected, insert=True)  # before statements that prepare the connection
    event.listen(engine, "checkout", lines.taken)
    event.listen(engine, "checkin", lines.returned)
    write_in_turn(engine)


def write_in_turn(engine: Engine) -> None:
    """Have takers write one after another to a database that has one writer at a time.

    It has them poll it, with growing pauses: of many threads, most would sleep while nothing is written.
    """
    transactions = adapter_for(engine.dialect).transactions
    written = transactions.single_writer(engine)
    if written is None:
        return
    lock = _single_writers.setdefault(written, FairLock())

    def before_execution(_: Connection, cursor: object, statement: str, *rest: object) -> None:
        by = taker.get()
        if by is not None and transactions.begins_to_write(statement):
            by.writes(lock)

    event.listen(engine, "before_cursor_execute", before_execution)


def cut_idle(engines: Iterable[Engine]) -> None:
    """Shut down the connections that lie in the pools of ``engines``, also one that a pool tests before handing it out.

    Connections to other engines stay open: their servers may well answer.
    """
    for engine in engines:
        if engine in _followed:
            _followed[engine].cut_idle()


class _Lines:
    """The connections of one engine."""

    def __init__(self, network: Network, within: timedelta) -> None:
        self._network = network
        self._within = within
        self._given: set[str] = set()
        """The arguments for drivers that the application has not set."""
        self._lock = threading.Lock()
        self._idle: weakref.WeakSet[Wire] = weakref.WeakSet()

    def connecting(self, dialect: Any, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        for name, limit in self._network.connect_limits(dialect.driver, min(self._within, CONNECT)).items():
            if name not in options:
                options[name] = limit
                self._given.add(name)

    def connected(self, _: object, record: Any) -> None:
        self._network.lift_limits(record.driver_connection, self._given)
        wire = self._wire_of(record)
        if wire is not None:
            with self._lock:
                self._idle.add(wire)

    def taken(self, _: object, record: Any, proxy: Any) -> None:
        wire = self._wire_of(record)
        if wire is not None:
            with self._lock:
                self._idle.discard(wire)
        by = taker.get()
        if by is not None:
            record.info[_TAKER] = by
            by.takes(record, Line(wire, proxy) if self._network.is_there else None)
            if by.call_limit is not None:
                record.info[_UNDO] = self._network.limit_calls(record.driver_connection, by.call_limit)

    def returned(self, _: object, record: Any) -> None:
        by = record.info.pop(_TAKER, None)
        if by is not None:
            by.gives_back(record)
        undo: Undo | None = record.info.pop(_UNDO, None)
        if undo is not None:
            undo()
        wire = record.info.get(_WIRE)
        if wire is not None:
            with self._lock:
                self._idle.add(wire)

    def cut_idle(self) -> None:
        with self._lock:
            idle = tuple(self._idle)
            self._idle.clear()
        for wire in idle:
            wire.cut()

    def _wire_of(self, record: Any) -> Wire | None:
        if _WIRE not in record.info:
            record.info[_WIRE] = self._made(record.driver_connection)
        found: Wire | None = record.info[_WIRE]
        return found

    def _made(self, connection: Any) -> Wire | None:
        try:
            descriptor = self._network.descriptor(connection) if self._network.is_there else None
            if descriptor is None:
                return None
            keep_alive(descriptor, self._within)
            return Wire(descriptor)
        except Exception:  # whatever a driver raises whose connection has just been lost; its user will see
            return None
