"""Ports of servers that misbehave; each is a thread of the test."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

Serve = Callable[[socket.socket], None]
"""Handles one connection, which is closed afterwards."""


@contextmanager
def listener(serve: Serve) -> Iterator[int]:
    """A port at which each connection gets a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_accept, args=(server, serve), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # a close alone would leave the thread where it waits


@contextmanager
def closed() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield nobody.getsockname()[1]


def drop(connection: socket.socket) -> None:
    """Close the connection at the first request."""
    connection.recv(1)


def stay_silent(seconds: float) -> Serve:
    """Accept the connection, and answer nothing for so many seconds."""

    def serve(connection: socket.socket) -> None:
        time.sleep(seconds)

    return serve


def _accept(server: socket.socket, serve: Serve) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            connection, _ = server.accept()
            Thread(target=_serve, args=(connection, serve), daemon=True).start()


def _serve(connection: socket.socket, serve: Serve) -> None:
    with connection, suppress(OSError):  # the client was faster
        serve(connection)
