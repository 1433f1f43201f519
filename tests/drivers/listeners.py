"""Listeners that act as faulty servers, each in a thread of the test."""

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
    """Yield a port on which each connection is handled in its own thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_accept, args=(server, serve), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the waiting thread


@contextmanager
def closed() -> Iterator[int]:
    """Return a port without a listener."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield nobody.getsockname()[1]


def drop(connection: socket.socket) -> None:
    """Close the connection at the first request."""
    connection.recv(1)


def stay_silent(seconds: float) -> Serve:
    """Accept the connection, and do not respond for the given number of seconds."""

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
