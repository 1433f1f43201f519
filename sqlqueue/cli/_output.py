"""Tables for people, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..pausing import Pause
from ..spec import Identity, QueueSpec

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs: keys that stay, moments as ISO 8601.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, default=_json))


def _json(value: object) -> object:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> None:
    """Only the first and the last column are broken into lines; ``numbers`` from the second on are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        within = 0 < place < len(headings) - 1
        table.add_column(heading, justify="right" if 1 <= place <= numbers else "left", no_wrap=within)
    for row in rows:
        table.add_row(*(plain(each) for each in row))
    Console(highlight=False).print(table)


def say(text: str) -> None:
    Console(highlight=False).print(plain(text), soft_wrap=True)


def plain(value: object) -> Text:
    """As it is, but for what a terminal would take for a command."""
    text = _moment(value) if isinstance(value, datetime) else "" if value is None else str(value)
    return Text("".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text))


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}{'Z' if value.tzinfo else ''}"


def shown(identity: Identity) -> str:
    """A primary key such that ``--id`` takes it."""
    if len(identity) == 1:
        return str(identity[0])
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(identity)
    return line.getvalue()


def tasks(number: int, spec: QueueSpec) -> str:
    return f"{number} task{'s' * (number != 1)} of {spec.entity.__name__}"


def pauses(found: Iterable[Pause]) -> list[dict[str, object]]:
    return [
        {"topic": each.topic, "paused_at": each.paused_at, "paused_by": each.paused_by, "reason": each.reason}
        for each in found
    ]


def confirm(what: str, number: int, *, yes: bool) -> None:
    """Ask before ``number`` tasks are changed, if they are many; a no ends the command with the exit status 1."""
    if yes or number <= 1:
        return
    if not sys.stdin.isatty():
        typer.echo(f"sqlqueue: this would {what}, and there is no terminal to ask: say --yes", err=True)
        raise typer.Exit(2)
    typer.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True, err=True)
