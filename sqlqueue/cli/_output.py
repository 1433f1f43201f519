"""Output of the commands: tables and messages for people, JSON for programs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from enum import Enum
from itertools import zip_longest
from shutil import get_terminal_size
from time import sleep
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size

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


_CLEAR = "\x1b[H\x1b[2J"
GAP = 2
"""Characters between two columns."""
_TEXT = 24
"""Minimum width of a column with longer text."""


def room() -> int:
    """Return the width of the terminal, or what the variable ``COLUMNS`` says; elsewhere lines have any length."""
    return get_terminal_size((sys.maxsize, 0)).columns


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: int = 0,
    texts: Collection[str] | None = None,
    one_line: bool = False,
    keeps_lines: bool = False,
) -> None:
    """Print a table if it fits into the terminal.  Otherwise each value follows its heading, rows of numbers in one
    line each, others in a block of lines.

    ``numbers`` columns, starting with the second, are right-aligned.  The columns ``texts``, by default the last one
    unless it is a number, are wrapped at spaces where they do not fit, or shortened if ``one_line``; other values never
    are.  Line breaks are escaped, unless the last column ``keeps_lines``.
    """
    if texts is None:
        texts = headings[numbers + 1 :][-1:]
    last = len(headings) - 1 if keeps_lines else None
    lines = [[plain(each, lines=place == last) for place, each in enumerate(line)] for line in (headings, *rows)]
    if (widths := _widths(lines, texts, one_line=one_line)) is not None:
        _print_lines(lines, widths, numbers, one_line=one_line)
    elif numbers >= len(headings) - 2:
        told = [(line[0], _told(headings[1:], line[1:])) for line in lines[1:]]
        print_record(told, texts={name for name, _ in told})
    else:
        for number, line in enumerate(lines[1:]):
            if number:
                typer.echo()
            present = [(name, value) for name, value in zip(headings, line, strict=True) if value]
            print_record(present, texts=texts)


def _told(headings: Sequence[str], values: Sequence[str]) -> str:
    """Return the values that are not zero, each after its heading."""
    said = [f"{name} {value}" for name, value in zip(headings, values, strict=True) if value not in ("", "0")]
    return ", ".join(said) or "none"


def print_record(values: Collection[tuple[str, str]], *, texts: Collection[str]) -> None:
    """Print one line for each value; the ``texts`` are wrapped at spaces, other values never."""
    indent = max(cell_len(name) for name, _ in values) + GAP
    for name, value in values:
        lines = wrapped(value, room() - indent) if name in texts else value.split("\n")
        for number, line in enumerate(lines):
            typer.echo(f"{set_cell_size('' if number else name, indent)}{line}".rstrip())


def _widths(lines: Sequence[Sequence[str]], texts: Collection[str], *, one_line: bool) -> list[int] | None:
    """Return the widths of the columns, those of ``texts`` narrower than their values if necessary; ``None`` if they do
    not fit even so."""
    columns = list(zip(*lines, strict=True))
    widths = [max(map(width, column)) for column in columns]
    missing = sum(widths) + GAP * (len(widths) - 1) - room()
    for place, column in enumerate(columns):
        if missing > 0 and column[0] in texts:
            words = [] if one_line else [cell_len(word) for text in column for word in text.split()]
            narrow = max(min(widths[place], _TEXT), widths[place] - missing, *words, 0)
            missing -= widths[place] - narrow
            widths[place] = narrow
    return None if missing > 0 else widths


def _print_lines(lines: Iterable[Sequence[str]], widths: Sequence[int], numbers: int, *, one_line: bool) -> None:
    for number, line in enumerate(lines):
        cells = [
            [shortened(text, most)] if one_line else wrapped(text, most)
            for text, most in zip(line, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (
                part.rjust(most - cell_len(part) + len(part)) if 0 < place <= numbers else set_cell_size(part, most)
                for place, (part, most) in enumerate(zip(parts, widths, strict=True))
            )
            text = (" " * GAP).join(padded).rstrip()
            typer.echo(typer.style(text, bold=True) if number == 0 else text)


def shortened(text: str, room: int) -> str:
    """Return ``text`` if it fits, otherwise its beginning and an ellipsis."""
    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1).rstrip()}…"


def wrapped(text: str, room: int) -> list[str]:
    """Return ``text`` in lines of at most ``room`` characters; longer words are not broken."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append("")
        for word in re.findall(r"\s*\S+", line):
            if lines[-1] and cell_len(lines[-1] + word) > room:
                lines.append(word.lstrip())
            else:
                lines[-1] += word
    return lines


def width(text: str) -> int:
    """Return the width of the longest line of ``text``, in terminal cells."""
    return max(map(cell_len, text.split("\n")))


def say(text: str) -> None:
    """Print ``text`` to standard output."""
    typer.echo(plain(text))


def report(facts: object, *texts: str, as_json: bool) -> None:
    """Print ``facts`` as JSON, or the ``texts`` for people."""
    if as_json:
        print_json(facts)
    else:
        for text in texts:
            say(text)


def complain(text: str) -> None:
    """Print ``text`` to standard error."""
    typer.echo(plain(text), err=True)


def repeated(seconds: float | None) -> Iterator[None]:
    """Yield once; with ``seconds``, again after each pause, on a cleared terminal, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            if seconds is not None and sys.stdout.isatty():
                typer.echo(f"{_CLEAR}{datetime.now():%Y-%m-%d %H:%M:%S}, every {seconds:g} s\n")
            yield
            if seconds is None:
                return
            sys.stdout.flush()
            sleep(seconds)


def refusal(text: str) -> typer.BadParameter:
    """Return the exception for a usage error, for the caller to raise; the exit status is 2."""
    return typer.BadParameter(readable(text, lines=True))


def plain(value: object, *, lines: bool = True) -> str:
    """Return ``value`` as text, with control characters escaped, and line breaks unless ``lines``; collections as
    JSON."""
    match value:
        case None:
            value = ""
        case datetime():
            value = f"{value:%Y-%m-%d %H:%M:%S}{'Z' if value.tzinfo else ''}"
        case dict() | list():
            value = json.dumps(_strict(value), default=_json, ensure_ascii=False)
    return readable(value, lines=lines)


def tasks(number: int, *specs: QueueSpec) -> str:
    """Return a phrase such as ``3 tasks of email``."""
    return f"{number} task{'s' * (number != 1)} of {', '.join(spec.name for spec in specs)}"


def pauses(found: Iterable[Pause]) -> list[dict[str, object]]:
    """Return pauses as ``--json`` prints them."""
    return [facts(each, "topic", "key", "paused_at", "paused_by", "reason") for each in found]


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
