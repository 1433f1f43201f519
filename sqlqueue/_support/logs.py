"""The library's loggers, which escape text from outside the library."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from pathlib import Path, PurePath

from sqlalchemy.exc import SQLAlchemyError

from .error_text import message_of, readable

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
            each._str = message_of(raised)  # type: ignore[attr-defined]  # the text that it formats
    if not whole:
        application = _application(error)
        for each in chain:
            each.stack[:] = [frame for frame in each.stack if _owner(frame.filename) in (None, application)]
    messages = {line for each in chain for line in each.format_exception_only()}
    return "\n".join(readable(part[:-1], lines=part not in messages) for part in told.format())


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
