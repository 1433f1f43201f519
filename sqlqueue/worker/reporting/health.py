"""The health of a worker, served over HTTP for orchestrators."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from ..._support.errors import ArgumentError
from ..._support.texts import logger_of
from ...queue.schedules import lacks_zones, unknown_here

logger = logger_of("sqlqueue.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a worker."""

    alive: bool
    """Whether its event loop runs, its heartbeat thread is alive, and not all of its threads are waiting for the
    database in calls that nothing can interrupt.  If not, only a new process will help."""
    ready: bool
    """Whether its database also responds, and claims succeed: neither has failed for a lease, or for 30 seconds.  A
    worker that has met a cron schedule is not ready on a host without time zones or without cronsim."""
    stalled_seconds: float
    """Seconds since the event loop last ran."""
    away_seconds: float
    """Seconds for which the database has not responded."""
    failing_seconds: Mapping[str, float]
    """Seconds for which every claim of a handler has failed, by the table of its queue; if the last one succeeded, the
    queue is left out."""
    running: int
    """The number of tasks it holds."""
    unknown_schedules: Mapping[str, str]
    """The schedules that this host cannot evaluate, and why: their tasks are left to workers on other hosts."""
    counts: Mapping[str, int]
    """Counts since it started: ``claimed``, ``completed``, ``failed`` (to be retried), ``discarded`` (dead
    letters), ``cancelled``, ``released``, ``snoozed``, ``lost``, ``overdue``, ``retries``, ``database_errors``,
    ``unreadable`` (rows that claims have set aside because they cannot be read)."""


STALLED = 30.0
"""Seconds without progress after which a worker is not alive, and at the latest not ready."""
LOOPBACK = "127.0.0.1"
"""The default address: health is not exposed to other hosts unless configured."""
LARGEST_PORT = 65_535
CONNECTIONS = 32
"""The maximum number of connections to the health checks."""
IDLE = 5.0
"""Seconds for which such a connection may be silent."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The format of Prometheus."""


class Address(NamedTuple):
    """An address to listen on."""

    host: str
    port: int


class Liveness:
    """When the event loop and the database last responded."""

    def __init__(self) -> None:
        self._turned = time.monotonic()
        self._away: float | None = None
        self._failing: dict[tuple[str, Hashable], float] = {}
        self.ready_within = STALLED
        """Seconds without a response after which a worker is not ready."""

    async def watch_loop(self) -> None:
        """Record once a second that the event loop runs."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(1)

    @property
    def away_seconds(self) -> float:
        """The seconds for which the database has not responded; 0 if it has."""
        away = self._away  # read once: other threads change it
        return 0.0 if away is None else time.monotonic() - away

    def reached(self) -> None:
        """Record that the database responded."""
        self._away = None

    def missed(self) -> None:
        """Record that the database has not responded to a request, which may have just been sent."""
        if self._away is None:
            self._away = time.monotonic()

    @property
    def failing_seconds(self) -> dict[str, float]:
        """The seconds for which every claim of a handler has failed, by the table of its queue."""
        now, longest = time.monotonic(), dict[str, float]()
        for (queue, _), since in self._failing.copy().items():
            longest[queue] = max(now - since, longest.get(queue, 0.0))
        return longest

    def claims_fail(self, queue: str, by: Hashable) -> None:
        """Record that a claim ``by`` a handler from a queue has failed, for any reason."""
        self._failing.setdefault((queue, by), time.monotonic())

    def claims_work(self, queue: str, by: Hashable) -> None:
        """Record that a claim has succeeded, whether or not it found a task."""
        self._failing.pop((queue, by), None)

    def health(self, *, beats: bool, running: int, counts: Mapping[str, int]) -> Health:
        """Return the worker's health; ``beats``: whether its heartbeats work, ``running``: how many tasks run."""
        stalled, away, failing = time.monotonic() - self._turned, self.away_seconds, self.failing_seconds
        alive = beats and stalled < STALLED
        return Health(
            alive=alive,
            ready=alive
            and max(away, *failing.values(), 0) < self.ready_within
            and not (unknown_here and lacks_zones()),
            stalled_seconds=round(stalled, 3),
            away_seconds=round(away, 3),
            failing_seconds={queue: round(seconds, 3) for queue, seconds in failing.items()},
            running=running,
            unknown_schedules=dict(unknown_here),
            counts=dict(counts),
        )


def address_of(text: str) -> Address:
    """Parse ``8080`` (loopback), ``0.0.0.0:8080`` or ``[::1]:8080``.  Raises :class:`.ArgumentError` for anything
    else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not host or not port.isascii() or not port.isdigit() or int(port) > LARGEST_PORT:
        raise ArgumentError(f"{text!r} is not an address: give PORT, HOST:PORT or [IPV6]:PORT, as in 0.0.0.0:8080")
    return Address(host, int(port))


def serve_health(
    address: Address, health: Callable[[], Health | None], metrics: Callable[[], bytes | None] = lambda: None
) -> ThreadingHTTPServer:
    """Serve ``/health`` (503 unless alive) and ``/ready`` (503 unless ready) as JSON, in a thread.

    Also ``/metrics`` for Prometheus, 404 if ``metrics`` returns nothing.

    A worker that has not started yet is alive but not ready.  Raises :class:`.ArgumentError` if the address cannot be
    bound.
    """
    try:
        server = _Server(address, _pages(health, metrics))
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"cannot serve health checks on {address.host} port {address.port}: {error}") from error
    threading.Thread(target=server.serve_forever, name="sqlqueue-health", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """A server whose clients cannot use up the threads and file descriptors of the worker."""

    daemon_threads = True

    def __init__(self, address: Address, page: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._open: dict[Any, None] = {}
        """The connections, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(address, page)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread.  If there are too many connections, the oldest ends: a probe takes milliseconds."""
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= CONNECTIONS else None
            self._open.pop(oldest, None)
            self._open[request] = None
        if oldest is not None:
            with suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, usually a connection that its client has closed; the base class prints a traceback."""
        logger.debug("a health check failed", exc_info=True)


def _pages(health: Callable[[], Health | None], metrics: Callable[[], bytes | None]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests for the pages of :func:`serve_health`."""

    class Page(BaseHTTPRequestHandler):
        timeout = IDLE

        def version_string(self) -> str:
            """Return what the header ``Server`` says: no versions."""
            return "sqlqueue"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if self.path == "/metrics" and (text := metrics()) is not None:
                self._answer(200, TEXT, text)
                return
            state = health()
            answers = {"/health": state is None or state.alive, "/ready": state is not None and state.ready}
            if self.path not in answers:
                self.send_error(404)
                return
            body = json.dumps(None if state is None else asdict(state)).encode()
            self._answer(200 if answers[self.path] else 503, "application/json", body)

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Do not log probes, which come every few seconds."""

    return Page
