"""The commands that change tasks in batches: ``retry``, ``run-now``, ``rerun``, ``cancel``, ``discard``, ``prune``."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .. import operations
from ..model.companions import history_of
from ..operations import BATCH, CAP, Batch, Pruned, QueueStats, count_old_attempts, is_prunable
from ..operations.reactivating import CANCEL, RERUN, RETRY, RUN_NOW, MassChange, discarding
from ..queue.options import FINAL, Status
from ..queue.spec import Criterion, QueueSpec
from ._database import transact
from ._options import AsJson, Filters, Queues, Yes, duration
from ._output import complain, confirm, refusal, report, tasks

# -- changes that take many transactions: showing their progress, and stopping them with Ctrl-C -----------------------

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


# -- a change of many tasks: counted, confirmed, carried out in batches, and reported ---------------------------------

_FINAL = "is final; sqlqueue rerun makes it run again."
_HINTS = {
    Status.AVAILABLE: "An available task is claimed by the next free worker, unless sqlqueue stats shows it as paused.",
    Status.SCHEDULED: "A scheduled task runs once it is due; sqlqueue run-now makes it due now.",
    Status.RETRYABLE: "A retryable task runs again once it is due; sqlqueue run-now makes it due now.",
    Status.WAITING: "A waiting task starts when what it waits for has ended; sqlqueue why says what that is.",
    Status.RUNNING: "A running task belongs to its worker until its lease expires; then any worker may take it over.",
    Status.COMPLETED: f"A completed task {_FINAL}",
    Status.CANCELLED: f"A cancelled task {_FINAL}",
    Status.DISCARDED: "A discarded task is a dead letter; sqlqueue retry brings it back.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedChange:
    """A change of the tasks that match some criteria, which the user is asked to confirm."""

    verb: str
    done: str
    chosen: Mapping[QueueSpec, Sequence[Criterion]]
    """The criteria of the tasks, by queue."""
    change: MassChange
    batches: Callable[[Session], Iterable[Batch]]
    """A function that carries out the change, in batches that each commit."""
    named: bool = False
    """Whether tasks were selected by key; the command then explains why none was changed."""
    ends_all: bool = False
    """Whether it ends all tasks of the queue, for want of a filter: even one needs confirmation."""
    deletes: bool = False
    """Whether rows are deleted; rows that foreign keys reference are kept."""

    def carry_out(self, url: str, *, yes: bool, as_json: bool) -> None:
        """Count the tasks, ask for confirmation if there are several, change them, and print how many were changed."""
        stats = transact(url, self._counted)
        counts = Counter({str(status): sum(each[status] for each in stats) for status in self.change.states})
        counts["abandoned"] = sum(each.abandoned for each in stats) if self.change.abandoned else 0
        counts = +counts
        number, capped = counts.total(), {name for each in stats for name in each.capped}
        is_capped = not capped.isdisjoint(counts)
        if number:
            parts = ", ".join(f"{part}{'+' if what in capped else ''} {what}" for what, part in counts.items())
            if number > 1 or self.ends_all:
                many = f"{'at least ' if is_capped else ''}{tasks(number, *self.chosen)}"
                confirm(f"{self.verb.replace('-', ' ')} {many} ({parts})", yes=yes)
        totals = BatchTotals()
        try:
            if number:
                in_transactions(url, self.batches, totals, what=self.verb, total=None if is_capped else number)
        except DBAPIError:
            complain(f"{self._told(totals)} These changes are committed; then an error occurred.")
            raise
        kept = "protected" if self.deletes else "taken"
        done = {"tasks": totals.changed, kept: getattr(totals, kept), "stopped": totals.stopped}
        why_none = [self._why_none(stats)] if self.named and not totals.changed else []
        name = ", ".join(spec.name for spec in self.chosen)
        report({"queue": name, "action": self.verb, **done}, self._told(totals), *why_none, as_json=as_json)
        if totals.stopped:
            complain("Stopped. Finished batches are committed; run the same command again for the rest.")
            raise typer.Exit(STOPPED)

    def _counted(self, session: Session) -> list[QueueStats]:
        """Count the named tasks, or without names only the affected ones, which the cap on counting could otherwise
        hide."""
        affected = {spec: [] if self.named else [self.change.affected(spec)] for spec in self.chosen}
        return [
            operations.stats(session, spec.entity, *where, *affected[spec], cap=CAP)
            for spec, where in self.chosen.items()
        ]

    def _told(self, totals: BatchTotals) -> str:
        number = totals.changed
        told = f"{tasks(number, *self.chosen)} {'is' if number == 1 else 'are'} {self.done}."
        if totals.taken:
            told += f"\n{totals.taken} could not be changed: another task has the same unique_key."
        if totals.protected:
            are, them = ("is", "it") if totals.protected == 1 else ("are", "them")
            told += f"\n{tasks(totals.protected, *self.chosen)} {are} kept: foreign keys reference {them}."
        return told

    def _why_none(self, stats: Iterable[QueueStats]) -> str:
        """Return the states of the named tasks, and hints for each."""
        found = [(status, number) for status in Status if (number := sum(each[status] for each in stats))]
        if not found:
            return "There is no such task."
        states = ", ".join(f"{number} {status}" for status, number in found)
        hints = [_HINTS[status] for status, _ in found]
        affected = ", ".join([*self.change.states, *(["abandoned"] if self.change.abandoned else [])])
        return f"Found: {states}. sqlqueue {self.verb} changes {affected}.\n" + "\n".join(dict.fromkeys(hints))


# -- the commands that change tasks: `sqlqueue retry`, `rerun`, `run-now`, `cancel`, `discard` ------------------------

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Stored as the error of each task.")]


def retry(queues: Queues, filters: Filters, yes: Yes = False, as_json: AsJson = False) -> None:
    """Retry failed or abandoned tasks: retryable and discarded ones, and running ones whose lease has expired.

    They become available, and may use all their attempts again.

        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error 'ConnectionError%'
        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Base --batch 'import 7'

    Without a filter, all such tasks are retried. For more than one, the command shows their number and asks for
    confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    _change(queues, filters, RETRY, "retry", "available again", yes=yes, as_json=as_json)


def rerun(queues: Queues, filters: Filters, yes: Yes = False, as_json: AsJson = False) -> None:
    """Run final tasks again: completed, cancelled and discarded ones, and rows from before the table became a queue.

    They become available, and may use all their attempts again; a recurring task is scheduled for its next time, and a
    task with stages starts at the first one. Other tasks are not changed.

        sqlqueue rerun --url postgresql+psycopg://me@host/shop shop.models:Invoice --id 4711

    Without a filter, all such tasks run again. For more than one, the command shows their number and asks for
    confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    _change(queues, filters, RERUN, "rerun", "made to run again", yes=yes, as_json=as_json)


def run_now(queues: Queues, filters: Filters, yes: Yes = False, as_json: AsJson = False) -> None:
    """Run waiting tasks now: scheduled and retryable ones become available, as do those with a later time.

    The attempts that they have made still count; sqlqueue retry allows all of them again. The next run of a recurring
    task follows this one; see also sqlqueue schedules.

        sqlqueue run-now --url postgresql+psycopg://me@host/shop shop.models:Email --status scheduled --topic news

    Without a filter, all such tasks run now. For more than one, the command shows their number and asks for
    confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (always 0) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    _change(queues, filters, RUN_NOW, "run-now", "available now", yes=yes, as_json=as_json)


def cancel(queues: Queues, filters: Filters, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel tasks: all that are not final become cancelled, running ones included.

        sqlqueue cancel --url postgresql+psycopg://me@host/shop shop.models:Email --where campaign_id=12
        sqlqueue cancel --url postgresql+psycopg://me@host/shop shop.models:Base --batch 'import 7'

    Workers notice at their next heartbeat; a running handler can no longer complete its task or commit its writes.
    For more than one task, and without a filter, the command shows their number and asks for confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    _change(queues, filters, CANCEL, "cancel", "cancelled", yes=yes, as_json=as_json)


def discard(queues: Queues, reason: Reason, filters: Filters, yes: Yes = False, as_json: AsJson = False) -> None:
    """Discard tasks: all that are not final become dead letters, running ones included.

        sqlqueue discard --url postgresql+psycopg://me@host/shop shop.models:Email --id 4711 --reason 'no such address'

    Workers notice at their next heartbeat; a running handler can no longer complete its task or commit its writes.
    sqlqueue retry brings dead letters back. For more than one task, and without a filter, the command shows their
    number and asks for confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    _change(queues, filters, discarding(reason), "discard", "discarded", yes=yes, as_json=as_json)


def _change(
    queues: Queues, filters: Filters, change: MassChange, verb: str, done: str, *, yes: bool, as_json: bool
) -> None:
    """Change the tasks that the filters select, in all queues those of a batch; ``done`` completes "3 tasks are"."""
    specs = [queues.only] if filters.batch is None or filters.ids else queues.with_batches
    chosen = {spec: filters.criteria(spec) for spec in specs}
    filters.verify(queues, specs[0])
    ConfirmedChange(
        verb=verb,
        done=done,
        chosen=chosen,
        change=change,
        named=bool(filters.ids),
        ends_all=verb in {"cancel", "discard"} and not any(chosen.values()),
        batches=partial(change.in_batches, chosen=chosen),
    ).carry_out(queues.url, yes=yes, as_json=as_json)


# -- the command `sqlqueue prune`, for tasks and for the history of their attempts ------------------------------------

_FINAL_HELP = "Only tasks that finished longer ago than this: 90s, 15m, 2h, 7d. Default: the model's retention."
Final = Annotated[timedelta | None, duration("--older-than", metavar="AGE", text=_FINAL_HELP)]
Adopted = Annotated[
    bool,
    typer.Option("--adopted", help="Instead delete rows from before the table became a queue, by created_at."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of tasks. Default: all.")
]
OfHistory = Annotated[
    bool, typer.Option("--history", help="Instead delete the history of finished attempts, by the time they ended.")
]


def prune(
    queues: Queues,
    *,
    older_than: Final = None,
    limit: Limit = None,
    adopted: Adopted = False,
    history: OfHistory = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete tasks that finished long ago: completed, cancelled and discarded ones (dead letters).

        sqlqueue prune --url postgresql+psycopg://me@host/shop shop.models:Email --older-than 30d

    Rows from before the table became a queue are kept, unless --adopted selects exactly these. Rows that foreign keys
    reference are kept too. For more than one task, the command shows their number and asks for confirmation.

    With --history: deletes finished attempts at tasks of the queue instead, if they ended longer ago than the retention
    of the HistoryMixin, or than --older-than. Tasks are left unchanged.

    Each transaction takes a thousand rows. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were deleted), protected (how many are kept, because
    foreign keys reference them) and stopped (by Ctrl-C). With --history: queue, action, attempts and stopped.

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    spec = queues.only
    if history:
        _prune_history(queues.url, spec, older_than, limit, adopted=adopted, yes=yes, as_json=as_json)
        return
    if older_than is None and (adopted or not spec.options.prunes):
        reason = "--adopted has no default age" if adopted else f"{spec.name} has no retention"
        raise refusal(f"{reason}: use --older-than")
    delete = partial(operations.prune, entity=spec.entity, older_than=older_than, adopted=adopted)
    ConfirmedChange(
        verb="prune",
        done="deleted",
        chosen={spec: [is_prunable(spec, older_than, adopted=adopted)]},
        change=MassChange(change=operations.prune, states=FINAL),
        batches=partial(_in_batches, delete=delete, limit=limit),
        deletes=True,
    ).carry_out(queues.url, yes=yes, as_json=as_json)


def _in_batches(session: Session, *, delete: Callable[..., int], limit: int | None) -> Iterator[Batch]:
    """Call ``delete`` for some rows until it finds fewer, or has deleted ``limit``; commit after each call."""
    deleted = 0
    while limit is None or deleted < limit:
        number = BATCH if limit is None else min(BATCH, limit - deleted)
        gone = delete(session, limit=number)
        session.commit()
        yield Batch(gone, protected=gone.protected if isinstance(gone, Pruned) else 0)
        deleted += gone
        if gone < number:
            break


def _prune_history(
    url: str,
    spec: QueueSpec,
    older_than: timedelta | None,
    limit: int | None,
    *,
    adopted: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if adopted:
        raise refusal("--adopted selects tasks, which --history does not delete")
    kept = history_of(spec.table.metadata)
    if older_than is None and kept is not None and kept.options.retention is None:
        raise refusal("the history has no retention: use --older-than")
    found = transact(url, lambda session: count_old_attempts(session, spec.entity, older_than, cap=CAP))
    number, more = min(found, limit or found), found == CAP and (limit is None or limit > CAP)
    if number > 1:
        many = f"{'at least ' if more else ''}{_attempts(number)}"
        confirm(f"delete {many} at tasks of {spec.name}", yes=yes)
    totals = BatchTotals()
    if number:
        delete = partial(operations.prune_history, entity=spec.entity, older_than=older_than)
        batches = partial(_in_batches, delete=delete, limit=limit)
        in_transactions(url, batches, totals, what="prune", total=None if more else number)
    done = {"queue": spec.name, "action": "prune", "attempts": totals.changed, "stopped": totals.stopped}
    are = "is" if totals.changed == 1 else "are"
    report(done, f"{_attempts(totals.changed)} at tasks of {spec.name} {are} deleted.", as_json=as_json)
    if totals.stopped:
        raise typer.Exit(STOPPED)


def _attempts(number: int) -> str:
    return "1 finished attempt" if number == 1 else f"{number:,} finished attempts"
