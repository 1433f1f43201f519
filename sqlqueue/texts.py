"""The text of an error, such that any engine can store it."""

from __future__ import annotations

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


def _described(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        message = str(error)
    except Exception:  # an exception may have a __str__ of its own, with an error of its own
        return f"{name}: (its message cannot be had)"
    return f"{name}: {message}" if message else name
