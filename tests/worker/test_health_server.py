"""The server of health checks: whatever its clients do, the worker goes on, and probes are answered."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from sqlqueue.worker import reports as module
from sqlqueue.worker.reports import CONNECTIONS, Address, serve_health
from tests.support.workers import PATIENCE, eventually


@pytest.fixture
def port() -> Iterator[int]:
    server = serve_health(Address("127.0.0.1", 0), lambda: None)
    yield server.server_port
    server.shutdown()
    server.server_close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def ask(port: int, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    client = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    client.request(method, "/health")
    response = client.getresponse()
    body = response.read()
    client.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def answering() -> int:
    """Return the number of threads that have a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_probes_are_answered_while_others_keep_connections_open(port: int) -> None:
    idle = [connected(port) for _ in range(3 * CONNECTIONS)]
    try:
        assert ask(port)[0] == 200
        eventually(lambda: answering() <= CONNECTIONS)
    finally:
        for client in idle:
            client.close()
    eventually(lambda: not answering())


def test_a_silent_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.2)
    server = serve_health(Address("127.0.0.1", 0), lambda: None)
    try:
        with connected(server.server_port) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n")
            assert client.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()


def test_a_broken_connection_is_only_logged(
    port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> Any:
        with connected(port) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
            client.sendall(b"GET /hea")
        return "a health check failed" in caplog.text

    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        eventually(breaks)
    assert capfd.readouterr().err == ""


def test_no_version_is_told(port: int) -> None:
    assert ask(port)[1]["server"] == "sqlqueue"


def test_head(port: int) -> None:
    _, expected, body = ask(port)
    status, headers, nothing = ask(port, "HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["content-length"] == expected["content-length"] == str(len(body))
