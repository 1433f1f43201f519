"""Text from elsewhere: of errors, such that any engine can store it; of all kinds, such that people can read it."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence

from .exc import ArgumentError

_LONGEST = 2000
"""UTF-16 code units, in which the narrowest of the columns counts."""


def error_text(error: BaseException | str) -> str:
    """``"TypeName: message"`` of an exception, or the string; whatever the exception, that does not fail.

    NUL and lone surrogates, which engines refuse, are spelled out; what is too long ends in an ellipsis.
    """
    if not isinstance(error, (str, BaseException)):
        raise ArgumentError(f"error={error!r}: give an exception or a string")
    text = error if isinstance(error, str) else _described(error)
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    units = text.encode("utf-16-le")
    if len(units) <= 2 * _LONGEST:
        return text
    return units[: 2 * (_LONGEST - 1)].decode("utf-16-le", "ignore") + "…"


def readable(value: object, *, lines: bool = False) -> str:
    """What a terminal or a log may be sent of ``value``: its text, with everything that is not visible escaped.

    That is control characters (ESC, CR, BEL, C1), bidirectional and other formatting, surrogates, and line breaks
    unless ``lines`` are kept.  Nothing that comes from a database, an exception or a payload is printed without it.
    """
    text = value if isinstance(value, str) else _text_of(value)
    if text.isprintable():
        return text
    return "".join(each if _is_visible(each) or (lines and each == "\n") else repr(each)[1:-1] for each in text)


def key_text(identity: Sequence[object]) -> str:
    """A primary key in one word; several columns as in a line of CSV."""
    if len(identity) == 1:
        return str(identity[0])
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(identity)
    return line.getvalue()


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # such as a space that does not break


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"({type(value).__qualname__} without a text: {type(error).__qualname__})"


def _described(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        message = str(error)
    except Exception:  # an exception may have a __str__ of its own, with an error of its own
        return f"{name}: (its message cannot be had)"
    return f"{name}: {message}" if message else name
