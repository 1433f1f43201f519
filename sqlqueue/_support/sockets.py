"""The sockets of drivers' connections: shutting them down from any thread, detecting that the other end is gone."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

_PROBES = 3
"""Unanswered keepalive probes after which the kernel closes a connection."""
_LAST_DATA_SENT = 44
"""Offset of ``tcpi_last_data_sent`` in Linux's ``struct tcp_info``; ``tcpi_last_data_recv`` is two fields later."""


class Socket:
    """The socket of a connection, which any thread can shut down, even while another one waits for data."""

    __slots__ = ("__weakref__", "_descriptor", "_identity", "is_idle")

    def __init__(self, descriptor: int) -> None:
        """Raises :class:`OSError` if ``descriptor`` is not open."""
        self._descriptor = descriptor
        self._identity = os.fstat(descriptor).st_ino
        self.is_idle = True
        """Whether its connection waits in a pool."""

    def shut_down(self) -> bool:
        """Shut the socket down in both directions, which wakes waiting threads.  Returns false if it is closed already.

        Nothing is sent or waited for, so this cannot block.
        """
        try:
            with self._opened() as copy:
                copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True

    def unanswered(self) -> float:
        """Return for how many seconds nothing has been received since data was last sent.

        Returns 0 if something has been received, and where the kernel does not report it: it is known for TCP on Linux.
        """
        if sys.platform != "linux":
            return 0
        try:
            with self._opened() as copy:
                facts = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        except OSError:
            return 0
        sent, _, received = struct.unpack_from("3I", facts, _LAST_DATA_SENT)  # in milliseconds before now
        return sent / 1000 if sent < received else 0

    @contextmanager
    def _opened(self) -> Iterator[socket.socket]:
        """Yield a copy.  Raises :class:`OSError` if its owner has closed it."""
        with _opened(self._descriptor) as copy:
            # its number may belong to another connection by now
            if os.fstat(copy.fileno()).st_ino != self._identity:
                raise OSError(errno.EBADF, "the socket is closed")
            yield copy


def keep_alive(descriptor: int, within: timedelta) -> None:
    """Have the kernel close the connection once the other end's kernel has been silent for ``within``.

    Does nothing for sockets that are not TCP, for options that the platform lacks, or where shorter times are already
    set.
    """
    seconds = max(int(within.total_seconds()), 2 * _PROBES)
    limits = {
        "TCP_KEEPIDLE": seconds // 2,
        "TCP_KEEPINTVL": seconds // 2 // _PROBES,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": seconds * 1000,
    }
    if is_local(descriptor):
        return
    with suppress(OSError), _opened(descriptor) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, limit in limits.items():
            option = getattr(socket, name, None)
            if option is not None and not 0 < copy.getsockopt(socket.IPPROTO_TCP, option) <= limit:
                copy.setsockopt(socket.IPPROTO_TCP, option, limit)


def is_local(descriptor: int) -> bool:
    """Return whether the socket is a Unix domain socket, whose ends are on the same machine."""
    try:
        with _opened(descriptor) as copy:
            return copy.family == getattr(socket, "AF_UNIX", None)
    except OSError:  # it is closed
        return False


def _opened(descriptor: int) -> socket.socket:
    """Return a copy of a descriptor as a socket: closing it leaves the driver's own descriptor open."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
