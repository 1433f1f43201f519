"""The result of a statement as JSON.

Numbers, booleans and text are JSON values, integers with all their digits.  Values that JSON cannot represent are
text: ``NaN``, ``Infinity`` and ``-Infinity``, bytes in hexadecimal, and everything else as the database or its driver
writes it.  Lone surrogates are replaced by U+FFFD.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..dialects.parts.requests import StatementResult


def response(answer: StatementResult, limit: int) -> str:
    """Return the result as JSON, with the rows that fit in ``limit`` characters.

    The others are read too, so that the statement runs to its end.
    """
    if answer.columns is None:
        return _json({"row_count": answer.row_count})
    rows: list[str] = []
    kinds: list[str] = []
    size, fits = 0, True
    for row in answer.rows:
        fits = fits and sum(len(each) for each in row if isinstance(each, (str, bytes))) <= limit
        if not fits:
            continue
        kinds = kinds or [type(value).__name__ for value in row]
        text = _json(list(row))
        size += len(text) + 1
        fits = size <= limit
        if fits:
            rows.append(text)
    shown = kinds or [""] * len(answer.columns)
    # in SQLite only values have types
    columns = [[name, type_name or kind] for (name, type_name), kind in zip(answer.columns, shown, strict=True)]
    head, tail = _json({"columns": columns}), _json({"row_count": len(rows), "truncated": not fits})
    return f'{head[:-1]},"rows":[{",".join(rows)}],{tail[1:]}'


def _json(value: Any) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    """Return ``value`` converted to values that JSON can represent."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return str(value)


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
