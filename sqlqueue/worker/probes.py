"""The health of a worker, served over HTTP for orchestrators."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from .._support.errors import ArgumentError
from .reports import TEXT, Health, logger

LOOPBACK = "127.0.0.1"
"""The default address: health is not exposed to other hosts unless configured."""
LARGEST_PORT = 65_535
CONNECTIONS = 32
"""The maximum number of connections to the health checks."""
IDLE = 5.0
"""Seconds for which such a connection may be silent."""


class Address(NamedTuple):
    """An address to listen on."""

    host: str
    port: int


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
