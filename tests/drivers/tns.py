"""As much of an Oracle listener as it takes to turn connections away.

https://github.com/oracle/python-oracledb (src/oracledb/impl/thin) has the packets from the client's side.
"""

from __future__ import annotations

import socket
import struct

from tests.drivers.listeners import Serve

_ACCEPT, _REFUSE = 2, 4


def refuse(number: int) -> Serve:
    """As a listener does that cannot hand the connection on: by the ORA number of the reason."""
    text = f"(DESCRIPTION=(ERR={number})(ERROR_STACK=(ERROR=(CODE={number})(EMFI=4))))".encode()

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(_packet(_REFUSE, struct.pack(">BBH", 4, 0, len(text)) + text))

    return serve


def accept_and_drop(connection: socket.socket) -> None:
    """The listener has found a server, which ends before the two know each other."""
    connection.recv(4096)
    version, options, data_unit = 319, 0, 8192
    connection.sendall(_packet(_ACCEPT, struct.pack(">HHHHHHHBB", version, options, data_unit, 8192, 1, 0, 32, 0, 0)))


def _packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHBBH", len(body) + 8, 0, kind, 0, 0) + body
