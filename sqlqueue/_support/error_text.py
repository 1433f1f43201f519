"""Makes error text storable on every engine, and any text safe to print."""

from __future__ import annotations

import codecs
import csv
import io
import socket
import unicodedata
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError, StatementError

from .exc import ArgumentError

codecs.lookup("utf-16-le")  # now, because a process without free file descriptors could not import it
_LONGEST = 2000
"""Maximum length in UTF-16 code units, the unit of the strictest engine."""
_LONGEST_HOST = 150


UNREADABLE = "cannot be read: "
"""The beginning of the error of a row that was set aside because it cannot be read."""


def error_text(error: BaseException | str, end: str = "") -> str:
    """Return ``"TypeName: message"`` for an exception, or the string.  Works even if the exception's ``__str__`` fails.

    ``end`` is appended, and never truncated.

    Neither the SQL nor the parameters of a statement are included, see :func:`message_of`.  NUL and lone surrogates,
    which engines reject, are escaped; text that is too long is truncated with an ellipsis.  Raises
    :class:`.ArgumentError` for other types.
    """
    if not isinstance(error, (str, BaseException)):
        raise ArgumentError(f"error={error!r}: give an exception or a string")
    text = error if isinstance(error, str) else _described(error)
    text = storable(text)
    units, room = text.encode("utf-16-le"), _LONGEST - len(end)
    if len(units) <= 2 * room:
        return text + end
    return units[: 2 * (room - 1)].decode("utf-16-le", "ignore") + "…" + end


def storable(text: str) -> str:
    """Return ``text`` with NUL and lone surrogates, which engines reject, escaped."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def ascii_text(text: str) -> str:
    """Return ``text`` as an error text that a database of any character set can store."""
    return error_text(text.encode("ascii", "backslashreplace").decode())


def host_name() -> str:
    """Return the name of this machine, short and in ASCII, so that any database can store it as a part of names."""
    return ascii_text(socket.gethostname())[:_LONGEST_HOST]


def readable(value: object, *, lines: bool = False) -> str:
    """Return the text of ``value`` for a terminal or a log, with invisible characters escaped.

    These are control characters (ESC, CR, BEL, C1), bidirectional and other formatting, surrogates, and line breaks
    unless ``lines``.  All text from a database, an exception or a payload goes through this before it is printed.
    """
    text = value if isinstance(value, str) else _text_of(value)
    if text.isprintable():
        return text
    return "".join(each if _is_visible(each) or (lines and each == "\n") else repr(each)[1:-1] for each in text)


def key_text(identity: Sequence[object]) -> str:
    """Return a primary key as text: a line of CSV if it has several columns."""
    if len(identity) == 1:
        return str(identity[0])
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(identity)
    return line.getvalue()


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # e.g. a no-break space


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"({type(value).__qualname__} whose str() raises {type(error).__qualname__})"


def message_of(error: BaseException) -> str:
    """Return the message of an exception, without the SQL and the parameters that SQLAlchemy adds to it.

    They contain the data that the statement reads or writes, and the message is shown to more people than those who
    may see the data.  Raises what the ``__str__`` of the exception raises.
    """
    if isinstance(error, StatementError) and error.args:
        return str(error.args[0])
    message = str(error)
    if isinstance(error, SQLAlchemyError):  # a PendingRollbackError quotes another one
        return message.partition("\n[SQL: ")[0]
    return message


def _described(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        message = message_of(error)
    except Exception:  # the __str__ of an exception may itself raise
        return f"{name}: (its message is not available)"
    return f"{name}: {message}" if message else name
