"""The output of the demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from sqlqueue import QueueStats, Status

from ..._support.error_text import readable
from .tally import Tally

_WAITING = (Status.RUNNING, Status.RETRYABLE)
_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Display:
    """The consoles of the demo: ``output`` for results, ``complaints`` for errors."""

    output: Console
    complaints: Console

    def say(self, text: str) -> None:
        """Print ``text`` as a result."""
        self.output.print(_plain(text), soft_wrap=True)

    def complain(self, text: str) -> None:
        """Print ``text`` as an error."""
        self.complaints.print(_plain(text), soft_wrap=True)

    @contextmanager
    def progress(self, files: int) -> Iterator[Callable[[QueueStats], None]]:
        """Yield a function that updates a progress bar, which is shown only on a terminal."""
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("files {task.fields[waiting]}"))
        hidden = not self.output.is_terminal
        with Progress(*columns, console=self.output, transient=True, disable=hidden) as progress:
            bar = progress.add_task("", total=files, waiting="")

            def show(stats: QueueStats) -> None:
                waiting = ", ".join(f"{stats[status]} {status}" for status in _WAITING if stats[status])
                progress.update(bar, completed=stats.total - stats.unfinished, waiting=waiting)

            yield show

    def report(self, tally: Tally, seconds: float) -> None:
        """Print the results of a run that took ``seconds``."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        for name, number, remark in _rows(tally, seconds):
            table.add_row(name, number, remark)
        self.output.print(table)
        for group in tally.errors[:_SHOWN_ERRORS]:
            self.say(f"{group.count} failed: {group.message}")


def _plain(text: str) -> Text:
    """Return ``text`` made safe for a terminal, since file names and database errors can contain anything."""
    return Text(readable(text, lines=True))


def _rows(tally: Tally, seconds: float) -> Iterator[tuple[str, str, str]]:
    yield "files", f"{tally.files:,}", "enqueued in one transaction"
    yield "done", f"{tally.done:,}", "completed, with result and receipt"
    yield "taken over", f"{tally.taken_over:,}", "of these, after another worker's lease expired"
    yield "failed", f"{tally.failed:,}", "retried, then given up"
    yield "lost", _alarm(tally.lost), "files that are neither done nor failed"
    yield "done twice", _alarm(tally.twice), "additional receipts for the same file"
    yield "rate", f"{tally.done / seconds:,.0f}/s", f"{seconds:.1f} s, including the wait for the lease"


def _alarm(number: int) -> str:
    return f"[{'bold red' if number else 'green'}]{number:,}[/]"
