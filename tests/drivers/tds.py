"""The part of SQL Server's protocol that is needed to log in and to return errors: [MS-TDS], version 7.4.

https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-tds
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from tests.drivers.listeners import listener

_REPLY = 4
_FAILED, _ATTENTION = 0x02, 0x20
"""Flags of the token that ends a response; the second acknowledges a cancel request."""


class _Kind(IntEnum):
    ATTENTION = 6
    LOGIN = 16
    PRELOGIN = 18


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the server: its number and its text."""

    number: int
    text: str = "as the test has it"


@dataclass(frozen=True, slots=True)
class Silence:
    """No response for the given number of seconds."""

    seconds: float


class Drop:
    """The server closes the connection."""


Answer = str | Failure | Silence | Drop
"""A response; text is the only value of a single row."""
GREETINGS = {
    "ProductVersion": "16.0.4000.1",
    "schema_name": "dbo",
    "system_views": "dm_exec_sessions",
    "transaction_isolation_level": "READ COMMITTED",
    "test max support": "test max support",
    "fn_listextendedproperty": "1",
}
"""Responses to SQLAlchemy's queries on its first connection."""


@dataclass
class FakeServer:
    """A server that responds to batches and calls with the first matching answer, or else with success and no rows."""

    answers: Mapping[str, Answer]
    """Responses by regular expression, searched for in the statement."""
    login: Failure | None = None
    """The error that rejects every login."""

    @contextmanager
    def listening(self) -> Iterator[int]:
        with listener(self._serve) as port:
            yield port

    def _serve(self, connection: socket.socket) -> None:
        while (message := _received(connection)) is not None:
            kind, data = message
            match kind:
                case _Kind.PRELOGIN:
                    reply = _prelogin()
                case _Kind.LOGIN:
                    reply = _reply(self.login) if self.login else _login_accepted() + _done()
                case _Kind.ATTENTION:
                    reply = _done(_ATTENTION)
                case _:
                    answer = self._answer(data.replace(b"\0", b"").decode("latin-1"))  # UTF-16, at any offset
                    if isinstance(answer, Drop):
                        return
                    reply = _reply(answer)
            connection.sendall(_packet(reply))

    def _answer(self, statement: str) -> Answer | None:
        return next((answer for known, answer in self.answers.items() if re.search(known, statement)), None)


def _reply(answer: Answer | None) -> bytes:
    match answer:
        case Failure(number, text):
            return _error(number, text) + _done(_FAILED)
        case Silence(seconds):
            time.sleep(seconds)
        case str():
            return _row(answer) + _done()
    return _done()


def _received(connection: socket.socket) -> tuple[int, bytes] | None:
    """Return a message, assembled from its packets; empty if the client has disconnected."""
    data = b""
    while header := _exactly(connection, 8):
        kind, status, length = struct.unpack(">BBH", header[:4])
        data += _exactly(connection, length - 8)
        if status & 1:
            return kind, data
    return None


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def _packet(data: bytes) -> bytes:
    return struct.pack(">BBHHBB", _REPLY, 1, len(data) + 8, 0, 1, 0) + data


def _prelogin() -> bytes:
    options = ((0, bytes([15, 0, 7, 208, 0, 0])), (1, b"\2"), (2, b"\0"), (3, b""), (4, b"\0"))  # 1: no encryption
    heads, bodies, start = b"", b"", 5 * len(options) + 1
    for name, value in options:
        heads += struct.pack(">BHH", name, start + len(bodies), len(value))
        bodies += value
    return heads + b"\xff" + bodies


def _login_accepted() -> bytes:
    body = struct.pack(">BI", 1, 0x74000004) + _text("Microsoft SQL Server", ">B") + bytes([15, 0, 7, 208])
    return struct.pack("<BH", 0xAD, len(body)) + body


def _error(number: int, text: str) -> bytes:
    state, severity = 1, 13
    body = struct.pack("<lBB", number, state, severity) + _text(text, "<H") + _text("", "<B") * 2 + struct.pack("<l", 1)
    return struct.pack("<BH", 0xAA, len(body)) + body


def _row(value: str) -> bytes:
    """Return a row with one column, an NVARCHAR of up to 100 characters."""
    column = struct.pack("<LHBH", 0, 0, 0xE7, 200) + bytes([9, 4, 208, 0, 52]) + _text("value", "<B")
    data = value.encode("utf-16-le")
    return struct.pack("<BH", 0x81, 1) + column + struct.pack("<BH", 0xD1, len(data)) + data


def _done(flags: int = 0) -> bytes:
    return struct.pack("<BHHQ", 0xFD, flags, 0, 0)


def _text(text: str, length: str) -> bytes:
    return struct.pack(length, len(text)) + text.encode("utf-16-le")
