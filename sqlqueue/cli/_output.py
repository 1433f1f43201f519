"""Output of the commands: tables and messages for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._support.texts import readable
from ..operations import Pause
from ..queue.spec import QueueSpec


def print_json(value: object) -> None:
    """Print ``value`` as ASCII JSON; ``NaN`` and infinities become text."""
    typer.echo(json.dumps(_strict(value), indent=2, default=_json, allow_nan=False))


def _strict(value: object) -> object:
    """Return ``value`` with non-finite floats and keys that are not strings converted to text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key if isinstance(key, str) else str(key): _strict(each) for key, each in value.items()}
        case list() | tuple():
            return [_strict(each) for each in value]
    return value


def _json(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


GAP = 2
"""Characters between two columns."""
_TEXT = 24
"""Minimum width of a last column whose text is longer than this."""


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: int = 0,
    one_line: bool = False,
    keeps_lines: bool = False,
) -> None:
    """Print a table as wide as the terminal; columns that do not fit follow below, with the first one repeated.

    ``numbers`` columns, starting with the second, are right-aligned.  A last column that does not fit is wrapped, or
    truncated if ``one_line``.  Line breaks are escaped, unless the last column ``keeps_lines``.
    """
    console = Console(highlight=False)
    last = len(headings) - 1 if keeps_lines else None
    cells = [[plain(each, lines=place == last) for place, each in enumerate(line)] for line in (headings, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(width, column)) for column in columns]
    first = min(widths[0], console.width // 2)
    for number, part in enumerate(_parts(widths, console.width - first)):
        if number:
            console.print()
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column(columns[0][0], width=first, overflow="fold")
        for place, room in part.items():
            table.add_column(
                columns[place][0],
                justify="right" if place <= numbers else "left",
                width=room,
                no_wrap=one_line,
                overflow="ellipsis" if one_line else "fold",
            )
        for line in zip(*(columns[place][1:] for place in (0, *part)), strict=True):
            table.add_row(*line)
        console.print(table)


def _parts(widths: Sequence[int], room: int) -> Iterator[dict[int, int]]:
    """Yield the columns after the first in groups that fit on a line, as widths by position."""
    part: dict[int, int] = {}
    left = room
    for place, wanted in enumerate(widths[1:], 1):
        needed = min(wanted, _TEXT) if place == len(widths) - 1 else wanted
        if part and needed + GAP > left:
            yield part
            part, left = {}, room
        part[place] = min(wanted, left - GAP)
        left -= part[place] + GAP
    yield part


def width(text: Text) -> int:
    """Return the width of the longest line of ``text``, in terminal cells."""
    return max((line.cell_len for line in text.split("\n")), default=0)


def say(text: str) -> None:
    """Print ``text`` to standard output."""
    Console(highlight=False).print(plain(text), soft_wrap=True)


def complain(text: str) -> None:
    """Print ``text`` to standard error."""
    Console(stderr=True, highlight=False).print(plain(text), soft_wrap=True)


def refusal(text: str) -> typer.BadParameter:
    """Return the exception for a usage error, for the caller to raise; the exit status is 2."""
    return typer.BadParameter(readable(text, lines=True))


def plain(value: object, *, lines: bool = True) -> Text:
    """Return ``value`` as text, with control characters escaped, and line breaks unless ``lines``."""
    text = _moment(value) if isinstance(value, datetime) else "" if value is None else value
    return Text(readable(text, lines=lines))


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}{'Z' if value.tzinfo else ''}"


def tasks(number: int, spec: QueueSpec) -> str:
    """Return a phrase such as ``3 tasks of Email``."""
    return f"{number} task{'s' * (number != 1)} of {spec.name}"


def pauses(found: Iterable[Pause]) -> list[dict[str, object]]:
    """Return pauses as ``--json`` prints them."""
    return [facts(each, "topic", "paused_at", "paused_by", "reason") for each in found]


def facts(value: object, *names: str) -> dict[str, Any]:
    """Return these attributes of ``value`` as ``--json`` prints them: durations in seconds."""
    found = {name: getattr(value, name) for name in names}
    return {name: each.total_seconds() if isinstance(each, timedelta) else each for name, each in found.items()}


def confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation unless ``yes``.  Exits with status 1 if refused, 2 if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        complain(f"sqlqueue: this would {what}, and there is no terminal to confirm it: use --yes")
        raise typer.Exit(2)
    typer.confirm(readable(f"{what[:1].upper()}{what[1:]}?"), abort=True, err=True)
