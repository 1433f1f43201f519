"""Changes that take many transactions: their progress, and how they are stopped."""

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
"""The exit status of a command that Ctrl-C ended."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What has been committed so far."""

    changed: int = 0
    taken: int = 0
    """See :class:`.Batch`."""
    protected: int = 0
    """Likewise."""
    stopped: bool = False
    """Whether Ctrl-C came before the end."""


def in_transactions(
    url: str, batches: Callable[[Session], Iterable[Batch]], outcome: Outcome, *, what: str, total: int | None
) -> None:
    """Carry out ``batches``, each of which commits itself, and note in ``outcome`` what they did, until Ctrl-C.

    Progress is shown at a terminal alone, where errors go.  The first Ctrl-C ends it after the present batch, a second
    one at once: what the present batch did is rolled back.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=total)

        def work(session: Session) -> None:
            for batch in batches(session):
                outcome.changed += batch.changed
                outcome.taken += batch.taken
                outcome.protected = batch.protected
                progress.update(bar, completed=outcome.changed + outcome.taken)
                if is_asked_to_stop():
                    outcome.stopped = True
                    return

        with _stoppable() as is_asked_to_stop:
            try:
                transact(url, work)
            except KeyboardInterrupt:
                outcome.stopped = True


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Whether there was a Ctrl-C; the second is a KeyboardInterrupt."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set  # only the main thread may handle signals
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
