"""Changes that take many transactions: showing their progress, and stopping them with Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy.orm import Session

from ..operations.batches import Batch
from ._database import transact

STOPPED = 130
"""The exit status of a command that was stopped by Ctrl-C."""


@dataclass(slots=True, kw_only=True)
class BatchTotals:
    """The changes committed so far."""

    changed: int = 0
    taken: int = 0
    """See :class:`.Batch`."""
    protected: int = 0
    """See :class:`.Batch`."""
    stopped: bool = False
    """Whether Ctrl-C stopped the command before the end."""


def in_transactions(
    url: str, batches: Callable[[Session], Iterable[Batch]], totals: BatchTotals, *, what: str, total: int | None
) -> None:
    """Run ``batches``, each of which commits, and add their results to ``totals``, until the end or Ctrl-C.

    Progress is shown on standard error, if that is a terminal.  The first Ctrl-C stops after the current batch; a
    second one stops at once and rolls the current batch back.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=total)

        def work(session: Session) -> None:
            for batch in batches(session):
                totals.changed += batch.changed
                totals.taken += batch.taken
                totals.protected = batch.protected
                progress.update(bar, completed=totals.changed + totals.taken)
                if is_asked_to_stop():
                    totals.stopped = True
                    return

        with _stoppable() as is_asked_to_stop:
            try:
                transact(url, work)
            except KeyboardInterrupt:
                totals.stopped = True


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; the second one raises KeyboardInterrupt."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread can handle signals
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
