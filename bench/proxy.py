"""A TCP proxy between clients and the server, in a separate process, which counts round trips and adds delays.

A round trip begins when the client sends something for the first time since it last received something.  Messages that
a driver sends without waiting for responses are one round trip. To recognize these, responses must take longer than the
client needs to send the next message, so the counts are correct only with a delay.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeAlias

from sqlalchemy import URL

from sqlqueue._support.processes import CONTEXT
from sqlqueue.evaluation.support import ChildProcess, EvaluationError

_PORTS = {"postgresql": 5432, "cockroachdb": 26257, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
"""Ports by SQLAlchemy's name of the dialect, for URLs without a port."""
_CHUNK = 1 << 16

Counter: TypeAlias = Any
"""A number in shared memory, as ``multiprocessing.Value``."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    url: URL
    """The URL of the server, through the proxy."""
    counter: Counter

    @property
    def round_trips(self) -> int:
        """The number of round trips on all connections so far."""
        count: int = self.counter.value
        return count


@contextmanager
def proxy(url: URL, delay: float) -> Iterator[Proxy]:
    """Start a proxy to the server of ``url`` that delays everything by ``delay`` seconds in each direction, and yield
    it.

    Raises :class:`.EvaluationError` if the URL does not contain the server's host.
    """
    port = url.port or _PORTS.get(url.get_backend_name())
    if not url.host or port is None:
        raise EvaluationError(
            "a proxy needs the host and port of the server in the URL, as in dialect://user@host:port/name"
        )
    counter = CONTEXT.Value("q", 0)
    with ChildProcess("the proxy", _serve, (url.host, port), delay, counter) as process:
        yield Proxy(url.set(host="127.0.0.1", port=process.receive()), counter)


def _serve(channel: Connection, server: tuple[str, int], delay: float, counter: Counter) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    channel.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_connect, args=(client, server, delay, counter), daemon=True).start()


def _connect(client: socket.socket, server: tuple[str, int], delay: float, counter: Counter) -> None:
    try:
        upstream = socket.create_connection(server)
    except OSError:  # the client notices that its connection ends
        client.close()
        return
    for each in (client, upstream):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    turns = _Turns(counter)
    threads = (
        _Direction(client, upstream, delay, on_arrival=turns.asked),
        _Direction(upstream, client, delay, on_delivery=turns.answered),
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    upstream.close()


class _Turns:
    """Changes of direction on one connection."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._is_waiting = False

    def asked(self) -> None:
        """Note that the client has sent something."""
        if not self._is_waiting:
            self._is_waiting = True
            with self._counter.get_lock():
                self._counter.value += 1

    def answered(self) -> None:
        """Note that the client is about to receive something."""
        self._is_waiting = False


def _nothing() -> None:
    pass


class _Direction:
    """One direction of a connection: a thread that receives, and one that delivers after the delay."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        delay: float,
        *,
        on_arrival: Callable[[], None] = _nothing,
        on_delivery: Callable[[], None] = _nothing,
    ) -> None:
        self._source = source
        self._target = target
        self._delay = delay
        self._on_arrival = on_arrival
        self._on_delivery = on_delivery
        self._under_way = SimpleQueue[tuple[float, bytes]]()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._receive, self._deliver)]

    def start(self) -> None:
        """Start both threads."""
        for each in self._threads:
            each.start()

    def join(self) -> None:
        """Wait until this direction has ended."""
        for each in self._threads:
            each.join()

    def _receive(self) -> None:
        data = b"?"
        while data:
            try:
                data = self._source.recv(_CHUNK)
            except OSError:
                data = b""
            if data:
                self._on_arrival()
            self._under_way.put((time.monotonic() + self._delay, data))

    def _deliver(self) -> None:
        data = b"?"
        while data:
            due, data = self._under_way.get()
            time.sleep(max(due - time.monotonic(), 0))
            self._on_delivery()
            with suppress(OSError):  # the peer has disconnected, which the other direction notices
                if data:
                    self._target.sendall(data)
                else:
                    self._target.shutdown(socket.SHUT_WR)
