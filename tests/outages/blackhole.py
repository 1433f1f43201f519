"""A TCP proxy in front of a server, whose connections can go silent in both directions without being closed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from sqlalchemy import URL

from tests.support.engines import ENGINES

_AT_ONCE = 65_536
_PORTS = {case.name: case.container.port for case in ENGINES if case.container}
"""The ports of servers whose URL names none."""


class BlackHole:
    """A proxy that accepts connections on a local port and forwards data in both directions."""

    def __init__(self, url: URL) -> None:
        self._server = url
        self.is_greedy = False
        """Whether new connections are silent, too."""
        self._lock = threading.Lock()
        self._alive: set[_Pair] = set()
        self._silent: list[_Pair] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def count(self) -> int:
        """How many connections are open and not silent."""
        with self._lock:
            return len(self._alive)

    @property
    def ports(self) -> list[tuple[int, int]]:
        """The ports of both ends of the clients' open connections: the client's, and this proxy's."""
        with self._lock:
            return [(pair.client.getpeername()[1], self.port) for pair in self._alive]

    def swallow(self) -> int:
        """Silence all current connections without notifying either side; return how many there are."""
        with self._lock:
            found = len(self._alive)
            for pair in self._alive:
                pair.is_silent.set()
            self._silent += self._alive
            self._alive.clear()
            return found

    @property
    def waiting(self) -> int:
        """How many clients have sent something on a silent connection, and have not closed it."""
        with self._lock:
            silent = tuple(self._silent)
        return sum(pair.is_used.is_set() and not pair.is_left for pair in silent)

    @property
    def left(self) -> int:
        """How many silent connections their clients have closed."""
        with self._lock:
            silent = tuple(self._silent)
        return sum(pair.is_left for pair in silent)

    def bury(self) -> None:
        """Close the silent connections on the server's side, as its keepalive would eventually do."""
        with self._lock:
            silent = tuple(self._silent)
        for pair in silent:
            with suppress(OSError):
                pair.server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            pairs = [*self._alive, *self._silent]
        for pair in pairs:
            pair.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                pair = _Pair(client, _connect(self._server))
                with self._lock:
                    self._silent.append(pair) if self.is_greedy else self._alive.add(pair)
                if self.is_greedy:
                    continue
                for source, target in ((pair.client, pair.server), (pair.server, pair.client)):
                    threading.Thread(target=self._pass_on, args=(pair, source, target), daemon=True).start()

    def _pass_on(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_AT_ONCE):
                if pair.is_silent.is_set():
                    if source is pair.client:
                        pair.is_used.set()
                    return  # no longer read or closed from here on
                target.sendall(data)
        if pair.is_silent.is_set():
            return
        with self._lock:
            self._alive.discard(pair)
        pair.close()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.is_silent = threading.Event()
        self.is_used = threading.Event()
        """Whether the client has sent something in the meantime."""

    @property
    def is_left(self) -> bool:
        """Whether the client has closed its end."""
        try:
            while self.client.recv(_AT_ONCE, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def through(hole: BlackHole, url: URL) -> URL:
    """Return ``url`` with the address of ``hole``."""
    return url.set(host="127.0.0.1", port=hole.port).difference_update_query(["host"])


def _connect(url: URL) -> socket.socket:
    named = url.query.get("host")  # a directory with PostgreSQL's socket
    if isinstance(named, str) and named.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{named}/.s.PGSQL.{url.port or 5432}")
        return server
    return socket.create_connection((str(url.host), url.port or _PORTS[url.get_backend_name()]))
