"""Texts that are stored, shown and logged: storable on every engine, safe to print."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import os
import re
import socket
import traceback
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path, PurePath
from types import FrameType

from sqlalchemy.exc import SQLAlchemyError, StatementError

from .errors import ArgumentError
from .private import set_message

# -- makes error text storable on every engine, and any text safe to print --------------------------------------------

_LONGEST = 2000
"""Maximum length in UTF-16 code units, the unit of the strictest engine."""
_LONGEST_END = 100
"""Maximum length of what is appended to an error text, which is ASCII."""
_LONGEST_HOST = 150


NO_MESSAGE = "(no message)"
UNREADABLE = "cannot be read: "
"""The beginning of the error of a row that was set aside because it cannot be read."""


def error_text(error: BaseException | str, end: str = "") -> str:
    """Return ``"TypeName: message"`` for an exception, or the string.  Works even if the exception's ``__str__`` fails.

    ``end`` is appended, and never truncated.

    Neither the SQL nor the parameters of a statement are included, see :func:`message_of`.  NUL and lone surrogates,
    which engines reject, are escaped; text that is too long is truncated with an ellipsis.  It is never blank: without
    a message, there is the name of the exception, and ``(no message)`` in place of a blank string.  Raises
    :class:`.ArgumentError` for other types.
    """
    if not isinstance(error, (str, BaseException)):
        raise ArgumentError(f"error={error!r}: give an exception or a string")
    text = error if isinstance(error, str) else _described(error)
    text = storable(text) if text.strip() else NO_MESSAGE
    units, room = text.encode("utf-16-le"), _LONGEST - len(end)
    if len(units) <= 2 * room:
        return text + end
    return units[: 2 * (room - 1)].decode("utf-16-le", "ignore") + "…" + end


def storable(text: str) -> str:
    """Return ``text`` with NUL and lone surrogates, which engines reject, escaped."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def ascii_text(text: str) -> str:
    """Return ``text`` as an error text that a database of any character set can store.

    If it is too long once its characters are escaped, it is truncated before its end, which :func:`error_text` may have
    appended to it.
    """
    plain = storable(text).encode("ascii", "backslashreplace").decode()
    if len(plain) <= _LONGEST:
        return plain
    return plain[: _LONGEST - _LONGEST_END - 3] + "..." + plain[-_LONGEST_END:]


@cache
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
    return f"{name}: {message}" if message.strip() else name


# -- groups error texts: what differs from one failure to the next is replaced ----------------------------------------

LONGEST_GROUP = 12
"""The length of :func:`error_group`."""
_LONGEST_PATTERN = 300
_CLASS = re.compile(r"[A-Z]\w*(\.(\w+|<locals>))*(?=: |$)")
"""The class of an exception, which may contain digits."""
_ON_NAMES = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError")
"""Python's own errors about names in the code, which they quote."""
_QUOTED_NAME = re.compile(r"(['\"])[A-Za-z_]+(\.[A-Za-z_]+)*\1")
_QUOTED = "'…'"
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d\d?:\d\d(:\d\d([.,]\d+)?)?( ?(z|gmt|utc|[+-]\d\d:?\d\d))?"
_VARYING = [
    (placeholder, re.compile(varying, re.IGNORECASE))
    for placeholder, varying in (
        # the text may end within quotes, where it is too long to be stored
        (_QUOTED, r"""(?<!\w)b?('[^']*('(?!\w)|…$)|"[^"]*("|…$)|`[^`]*(`|…$))|“[^”]*(”|…$)|«[^»]*(»|…$)"""),
        ("<email>", r"(?<![\w.+%-])[\w.+%-]+@[\w-]+(\.[\w-]+)*"),
        ("<uuid>", r"\b[\da-f]{8}-([\da-f]{4}-){3}[\da-f]{12}\b"),
        (
            "<date>",
            r"\b((mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?"
            rf"(\d{{4}}[-/]\d\d[-/]\d\d|\d\d?/\d\d?/\d{{4}}|\d\d?[ -]{_MONTH}[ -]\d{{4}}"
            rf"|{_MONTH} \d\d?(,? \d{{4}})?(?![\d:]))([ t]{_CLOCK})?( \d{{4}})?\b",
        ),
        # an address of IPv6
        ("<n>", r"(?<![\w:])(?=[\da-f:]*([a-f]|::))(?=[a-f:]*\d)[\da-f]{0,4}(:[\da-f]{0,4}){2,7}(?![\w:])"),
        ("<time>", rf"(?<![\w.]){_CLOCK}\b"),
        # hexadecimal and other tokens, like numbers: some of them have only digits
        (
            "<n>",
            r"(?<![^\W_])(0x[\da-f]+|(?=[a-f]*\d)[\da-f]{6,}|[\da-f]{8,}|(?=[a-z]*\d)[\da-z]{16,})(?![^\W_])",
        ),
        ("<n>", r"((?<![^\s=(\[,])[-+])?\d+([.,]\d+)*(:\d+)*(e[-+]?\d+)?"),
    )
]


def error_pattern(text: str) -> str:
    """Return an error text with its varying parts replaced: numbers, hexadecimal and other identifiers, UUIDs, dates
    and times, addresses, and quoted text.

    ``"Refused: smtp-1 refused ada@example.org (1f6ffe72)"`` becomes ``"Refused: smtp-<n> refused <email> (<n>)"``.  The
    class of an exception stays, and so do names that Python's own errors quote.  At most 300 characters are returned.
    Never empty.
    """
    text = " ".join(text.split())
    name = error_class(text)
    rest = text[len(name) :]
    for placeholder, varying in _VARYING:
        if placeholder == _QUOTED and name in _ON_NAMES:
            rest = varying.sub(lambda found: found[0] if _QUOTED_NAME.fullmatch(found[0]) else _QUOTED, rest)
        else:
            rest = varying.sub(placeholder, rest)
    return f"{name}{rest}"[:_LONGEST_PATTERN] or "(no text)"


def error_class(text: str) -> str:
    """Return the name of the exception's class with which an error text begins; empty if it does not."""
    found = _CLASS.match(text)
    return "" if found is None else found[0]


@lru_cache(maxsize=256)
def error_group(text: str) -> str:
    """Return the fingerprint of error texts with the same :func:`error_pattern`."""
    return hashlib.sha256(error_pattern(text).encode()).hexdigest()[:LONGEST_GROUP]


def is_error_group(text: str) -> bool:
    """Return whether ``text`` is a fingerprint."""
    return re.fullmatch(f"[0-9a-f]{{{LONGEST_GROUP}}}", text) is not None


# -- the library's loggers, which escape text from outside the library ------------------------------------------------

ALL_FRAMES = "sqlqueue_all_frames"
"""A record attribute that keeps all frames of the traceback, for errors that may be the library's own."""
_STANDARD = Path(os.__file__).parent
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARIES = {"sqlqueue", "sqlalchemy", "greenlet"}
"""Packages whose frames lie between the worker and the application."""


def logger_of(name: str) -> logging.Logger:
    """Return the logger of this name.  Its records are made safe to print before the application's handlers get them.

    The arguments of messages are escaped, line breaks included, so that each message is one line.  Tracebacks are
    escaped too, and show only the application's frames unless the logger's level is DEBUG.  ``exc_info`` is left
    unchanged, for handlers that read it.
    """
    logger = logging.getLogger(name)
    if not any(isinstance(each, _MakeReadable) for each in logger.filters):
        logger.addFilter(_MakeReadable())
    return logger


class _MakeReadable(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(each if isinstance(each, (int, float)) else readable(each) for each in record.args)
        if record.exc_info and record.exc_info[1] is not None:
            whole = getattr(record, ALL_FRAMES, False) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
            record.exc_text = traceback_text(record.exc_info[1], whole=whole)
        return True


def traceback_text(error: BaseException, *, whole: bool = False) -> str:
    """Return the traceback of ``error`` and its causes, escaped, with only the application's frames unless ``whole``.

    The messages contain neither the SQL nor the parameters of statements, see :func:`.message_of`.

    The application's frames are those in files that belong neither to Python nor to an installed package.  If the
    application is itself an installed package, it is the one of the outermost frame outside Python, sqlqueue,
    SQLAlchemy and greenlet.
    """
    told = traceback.TracebackException.from_exception(error, compact=True)
    chain = []
    for each, raised in _chain(told, error):
        chain.append(each)
        if isinstance(raised, SQLAlchemyError):
            set_message(each, message_of(raised))
    if not whole:
        application = _application(error)
        for each in chain:
            each.stack[:] = [frame for frame in each.stack if _owner(frame.filename) in (None, application)]
    messages = {line for each in chain for line in each.format_exception_only()}
    return "\n".join(readable(part[:-1], lines=part not in messages) for part in told.format())


def stack_text(frame: FrameType) -> str:
    """Return the stack of a running frame, escaped, from the application's function on that the library has called."""
    stack = traceback.extract_stack(frame)
    owners = [_owner(each.filename) for each in stack]
    library = owners.index("sqlqueue") if "sqlqueue" in owners else len(owners)
    called = (n for n, owner in enumerate(owners) if n > library and owner not in {*_LIBRARIES, _PYTHON})
    lines = traceback.format_list(stack[next(called, 0) :])
    return readable("Stack (most recent call last):\n" + "".join(lines).rstrip(), lines=True)


def clear_frames(error: BaseException) -> None:
    """Drop the local variables of the functions that raised ``error`` and its causes.

    Some of them refer to the error itself.  Without this, only a garbage collection would free all others.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _chain(
    told: traceback.TracebackException, error: BaseException
) -> Iterator[tuple[traceback.TracebackException, BaseException]]:
    """Yield the parts of the traceback and their exceptions."""
    yield told, error
    others = [(told.__cause__, error.__cause__), (told.__context__, error.__context__)]
    if isinstance(error, BaseExceptionGroup):
        others += zip(told.exceptions or (), error.exceptions, strict=False)
    for part, raised in others:
        if part is not None and raised is not None:
            yield from _chain(part, raised)


def _application(error: BaseException) -> str | None:
    """Return the name of the application's installed package, if it is one."""
    owners = (_owner(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((owner for owner in owners if owner not in _LIBRARIES and owner != _PYTHON), None)


_PYTHON = "python"


def _owner(filename: str) -> str | None:
    """Return the installed package of a file, or Python; ``None`` for other files."""
    path = PurePath(filename)
    if path.is_relative_to(Path(__file__).parents[1]):
        return "sqlqueue"
    for folder, name in zip(path.parts, path.parts[1:], strict=False):
        if folder in _INSTALLED:
            return name.removesuffix(".py")
    return _PYTHON if path.is_relative_to(_STANDARD) or filename.startswith("<frozen ") else None


def states_text(states: Mapping[str, int]) -> str:
    """Return the states of tasks in words: ``completed``, or ``3 completed, 2 waiting``."""
    if sum(states.values()) == 1:
        return next(iter(states))
    return ", ".join(f"{number:,} {state}" for state, number in states.items())


def ahead_text(ahead: int, most: int, of: str = "") -> str:
    """Return how many tasks come first, of which at most ``most`` were counted: ``2 tasks come first``."""
    if ahead == 1:
        return f"1 task{of} comes first"
    return f"{ahead:,}{' or more' if ahead == most else ''} tasks{of} come first"
