"""Deadlines of connections: no call waits longer than its deadline for a database that is silent."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import timedelta
from typing import Any, Self

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError

from .._support.sockets import Socket, keep_alive
from ..dialects import adapter_for
from ..dialects.connections import Connections, Undo
from ..operations.recording import spoken
from .reports import Liveness, logger
from .threads import FairLock, soon

# -- tracks the connections that are checked out of a pool, and shuts them down ---------------------------------------

_OPENED, _SOCKET, _OWNER, _UNDO = "sqlqueue opened", "sqlqueue socket", "sqlqueue owner", "sqlqueue undo"
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


owner: ContextVar[Deadline | None] = ContextVar("sqlqueue.owner", default=None)
"""The deadline of what checks out connections in this thread, or in this chain of coroutines."""
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
    pool = _tracked[engine] = _TrackedPool(adapter_for(engine.dialect).connections)
    event.listen(engine, "do_connect", pool.on_connecting)
    event.listen(engine, "connect", pool.on_connect, insert=True)  # before statements that prepare the connection
    event.listen(engine, "checkout", pool.on_checkout)
    event.listen(engine, "checkin", pool.on_checkin)
    write_in_turn(engine)


def track(engine: Engine, within: timedelta) -> None:
    """Report connections of ``engine`` to the deadlines of their users, and make the kernel close those that have been
    dead for ``within``.

    The driver abandons a connection attempt after that time, or after :data:`CONNECT`, unless the application has set a
    limit: nothing else can end the wait, which occupies a thread and a place in the pool.
    """
    observe(engine)
    pool = _tracked[engine]
    if pool.within is None:
        pool.within = within


def write_in_turn(engine: Engine) -> None:
    """Make transactions with a deadline take turns writing to a database that allows one writer at a time.

    The database itself makes writers poll, with growing pauses: of many threads, most would sleep while nothing is
    written.
    """
    connections = adapter_for(engine.dialect).connections
    written = connections.single_writer(engine)
    if written is None:
        return
    lock = _single_writers.setdefault(written, FairLock())

    def before_execution(_: object, cursor: object, statement: str, *rest: object) -> None:
        owned_by = owner.get()
        if owned_by is not None and connections.begins_to_write(statement):
            owned_by.writes(lock)

    def on_error(failed: ExceptionContext) -> None:
        if failed.is_disconnect and failed.connection is not None and not failed.connection.invalidated:
            connections.before_disconnect(failed.connection, getattr(failed.execution_context, "cursor", None))

    event.listen(engine, "before_cursor_execute", before_execution)
    event.listen(engine, "handle_error", on_error)


class _TrackedPool:
    """The tracked connections of one engine."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.within: timedelta | None = None
        """The time limit of dead connections, or ``None`` if they are not tracked yet."""
        self._distrusted_at = 0.0
        """When a connection was last found to be silent."""
        self._given: set[str] = set()
        """The arguments for drivers that the application has not set."""
        self._lock = threading.Lock()
        """Held to change and to copy the set of sockets."""
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()

    def on_connecting(self, dialect: Any, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        if self.within is None:
            return
        for name, limit in self._connections.connect_limits(dialect.driver, min(self.within, CONNECT)).items():
            if name not in options:
                options[name] = limit
                self._given.add(name)

    def on_connect(self, _: object, record: Any) -> None:
        if self.within is None:
            return
        record.info[_OPENED] = time.monotonic()
        self._connections.lift_connect_limits(record.driver_connection, self._given)
        self._socket_of(record, self.within)

    def on_checkout(self, _: object, record: Any, proxy: Any) -> None:
        if self.within is None:
            return
        if record.info.get(_OPENED, 0.0) < self._distrusted_at:
            raise InvalidatePoolError("an older connection has fallen silent")
        sock = self._socket_of(record, self.within)
        if sock is not None:
            sock.is_idle = False
        owned_by = owner.get()
        if owned_by is not None:
            record.info[_OWNER] = owned_by
            owned_by.checked_out(record, CheckedOut(sock, proxy) if self._connections.has_network else None)
            if owned_by.call_limit is not None:
                record.info[_UNDO] = self._connections.limit_calls(record.driver_connection, owned_by.call_limit)

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

    def distrust(self) -> None:
        """Replace the connections that are open now when they are next checked out: one of them has fallen silent.

        The pool would do so on its own only if a statement had failed, but not if it was the ROLLBACK of a connection
        that was returned.
        """
        self._distrusted_at = time.monotonic()

    def shut_down_idle(self) -> None:
        """Shut down idle connections, even one that the pool tests before it hands it out."""
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
            descriptor = self._connections.descriptor(connection) if self._connections.has_network else None
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


# -- deadlines of database transactions -------------------------------------------------------------------------------
#
# A connection that stays silent is shut down, which wakes the thread that waits for it, and the pool opens another.
# This is safe whatever happened to the transaction: it was committed or rolled back as a whole, and retries are fenced.

SHORTEST = timedelta(seconds=5)
"""The shortest limit: a busy server or machine can take that long to respond."""
SHORTEST_MAINTENANCE = timedelta(seconds=30)
"""The shortest limit of rare and possibly slow transactions."""
GRACE = 5.0
"""Seconds until a connection is shut down after its handler's task is lost or timed out, and between further
measures."""
PROBE_EVERY = 10
"""Seconds between two probes of a connection that listens."""
PROBE_WITHIN = timedelta(seconds=10)
"""How long the response to a probe may take."""
UNANSWERED = 3
"""The number of time limits for which a statement of the application may have no response after another connection has
been silent for one: a lease in all, see :func:`transaction_limit`."""
WRITE_WAIT = 5.0
"""Seconds for which a transaction waits for its turn to write, before it competes with other writers."""
TICK = 0.25
"""Seconds between two checks of the deadlines."""


def transaction_limit(lease: timedelta) -> timedelta:
    """Return the time limit of a transaction for tasks with this lease.

    A heartbeat is sent after a third of the lease; if it times out after another quarter, it can still be repeated in
    time. With a lease of a minute, a claim is repeated within 30 seconds even after the longest pause.
    """
    return max(lease / 4, SHORTEST)


def maintenance_limit(lease: timedelta) -> timedelta:
    """Return the time limit of maintenance of a queue with this lease."""
    return max(lease, SHORTEST_MAINTENANCE)


class NoResponse(TimeoutError):
    """Raised if the database has not responded in time; the transaction is rolled back, unless its commit was under
    way."""

    def __init__(self, within: timedelta) -> None:
        super().__init__(f"no response for {spoken(within)}")


class Deadline:
    """A context manager for a transaction, whose connections are shut down at the deadline.

    Raises :class:`NoResponse`, from the driver's error, if that has happened.
    """

    def __init__(
        self,
        within: timedelta,
        engines: Collection[Engine],
        *,
        is_async: bool,
        liveness: Liveness | None = None,
        on_stuck: Callable[[], object] | None = None,
    ) -> None:
        """``engines``: those whose connections the transaction may check out.

        ``liveness``: given if all statements are the library's own, which show whether the database responds.

        ``on_stuck`` is called if its thread does not end although its connections are shut down, or if it has none.
        """
        self._within = within
        self._engines = engines
        self._task = asyncio.current_task() if is_async else None
        self._liveness = liveness
        self._on_stuck = on_stuck
        # a driver's own limit takes effect after the deadline
        self.call_limit = None if liveness is None else within + timedelta(seconds=2 * TICK)
        """The time limit of a single call of the driver, or ``None``."""
        self._connections: dict[object, CheckedOut] = {}
        self._turn: FairLock | None = None
        self._is_suspended = self._is_suspected = self._is_silent = self._is_over = False
        self._is_limited = True
        self._token: Token[Deadline | None] | None = None
        self.expires_at: float | None = None

    def __enter__(self) -> Self:
        if self._liveness is not None:
            self._liveness.missed()
        self._token = owner.set(self)
        self._expect(self._within)
        _deadline_thread.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None and self._liveness is not None:
            self._liveness.reached()
        self._is_over = True
        self._end_turn()
        _deadline_thread.remove(self)
        if self._token is not None:
            owner.reset(self._token)
        if error is not None and self._is_silent and not isinstance(error, NoResponse):
            raise NoResponse(self._within) from error

    def checked_out(self, key: object, connection: CheckedOut | None) -> None:
        """Add a connection, or lift all deadlines if there is none: without a network, only locks can delay a response.

        Raises :class:`NoResponse` if the deadline has passed.
        """
        self.check()
        if connection is None:
            self._is_limited, self.expires_at = False, None
        else:
            self._connections[key] = connection

    def checked_in(self, key: object) -> None:
        """Forget a connection, and end the turn to write."""
        self._connections.pop(key, None)
        self._end_turn()

    def writes(self, turn: FairLock) -> None:
        """Wait for the turn to write, unless it is held already, and hold it until a connection is checked in."""
        if self._turn is None and turn.acquire(WRITE_WAIT, is_async=self._task is not None):
            self._turn = turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    @property
    def is_silent(self) -> bool:
        """Whether the deadline has passed, so that the transaction is being ended."""
        return self._is_silent

    def check(self) -> None:
        """Raise :class:`NoResponse` if the deadline has passed: late results are not committed."""
        if self._is_silent:
            raise NoResponse(self._within)

    @contextmanager
    def suspended(self, within: timedelta | None) -> Iterator[None]:
        """Suspend the deadline during application code, or set it to ``within`` and a grace period."""
        self._is_suspended, self.expires_at = True, None
        if within is not None:
            self._expect(within + timedelta(seconds=GRACE))
        try:
            yield
        finally:
            self._is_suspended = self._is_suspected = False
            self._expect(self._within)

    def end_soon(self) -> None:
        """Set the deadline to a grace period from now.  Thread-safe."""
        self._expect(timedelta(seconds=GRACE))

    def expire(self) -> None:
        """Shut down the connections.  Called at the deadline, and again after each further grace period."""
        self.end_soon()
        if self._is_suspended:
            self._shut_down_all()
        elif self._is_silent:
            self._interrupt()
        else:
            self._is_silent = True
            logger.warning("no response for %s: the connection is closed, and another is opened", spoken(self._within))
            pools = [_tracked[engine] for engine in tuple(self._engines) if engine in _tracked]
            for pool in pools:
                pool.distrust()
            if not self._shut_down_all():
                for pool in pools:  # connections of others stay open: their servers may still respond
                    pool.shut_down_idle()
            _deadline_thread.suspect(self._engines)

    def suspect(self, engines: Collection[Engine]) -> None:
        """Suspect the connections of application code, since another one of these engines has fallen silent."""
        self._is_suspected |= self._is_suspended and not set(engines).isdisjoint(self._engines)

    def shut_down_unanswered(self) -> None:
        """Shut down suspected connections on which a statement of the application has had no response for too long.

        Without suspicion, a statement may take any time.
        """
        if self._is_suspected:
            for connection in tuple(self._connections.values()):
                if connection.unanswered() > UNANSWERED * self._within.total_seconds():
                    connection.shut_down()

    def _interrupt(self) -> None:
        """Cancel a coroutine; detach the connections of a thread, which cannot be woken."""
        if self._task is not None:
            soon(self._task.get_loop(), self._cancel)
            return
        while self._connections:
            self._connections.popitem()[1].detach()
        if self._on_stuck is not None:
            self._on_stuck()

    def _cancel(self) -> None:
        if self._task is not None and not self._is_over:
            self._task.cancel()

    def _shut_down_all(self) -> bool:
        done = [connection.shut_down() for connection in tuple(self._connections.values())]
        return any(done)

    def _expect(self, within: timedelta) -> None:
        if self._is_limited:
            self.expires_at = time.monotonic() + within.total_seconds()


class _DeadlineThread:
    """A thread that checks the deadlines while there are any."""

    def __init__(self) -> None:
        self._deadlines: set[Deadline] = set()
        self._some = threading.Event()
        self._process: int | None = None
        """The process in which the thread runs: a fork does not copy it."""

    def add(self, deadline: Deadline) -> None:
        self._deadlines.add(deadline)
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._run, name="sqlqueue-watch", daemon=True).start()
        if not self._some.is_set():
            self._some.set()

    def remove(self, deadline: Deadline) -> None:
        self._deadlines.discard(deadline)

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(TICK)
            now = time.monotonic()
            for deadline in tuple(self._deadlines):
                self._check(deadline, now)
            if not self._deadlines:
                self._some.clear()
                if self._deadlines:  # added in the meantime
                    self._some.set()

    def suspect(self, engines: Collection[Engine]) -> None:
        for deadline in tuple(self._deadlines):
            deadline.suspect(engines)

    def _check(self, deadline: Deadline, now: float) -> None:
        try:
            deadline.shut_down_unanswered()
            if deadline.expires_at is not None and deadline.expires_at < now:
                deadline.expire()
        except Exception:
            logger.exception("cannot close a silent connection")


_deadline_thread = _DeadlineThread()
