"""The part of an Oracle listener's protocol that is needed to reject connections.

https://github.com/oracle/python-oracledb (src/oracledb/impl/thin) implements the client's side of the packets.
"""

from __future__ import annotations

import socket
import struct

from tests.drivers.listeners import Serve

_ACCEPT, _REFUSE = 2, 4


def refuse(number: int) -> Serve:
    """Reject the connection as a listener does, with the ORA number of the reason."""
    text = f"(DESCRIPTION=(ERR={number})(ERROR_STACK=(ERROR=(CODE={number})(EMFI=4))))".encode()

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(_packet(_REFUSE, struct.pack(">BBH", 4, 0, len(text)) + text))

    return serve


def accept_and_drop(connection: socket.socket) -> None:
    """Accept the connection, and drop it before the handshake is complete."""
    connection.recv(4096)
    version, options, data_unit = 319, 0, 8192
    connection.sendall(_packet(_ACCEPT, struct.pack(">HHHHHHHBB", version, options, data_unit, 8192, 1, 0, 32, 0, 0)))


def _packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHBBH", len(body) + 8, 0, kind, 0, 0) + body
