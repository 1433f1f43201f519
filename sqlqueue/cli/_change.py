"""A change of many tasks: counted, confirmed, carried out in batches, and reported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import typer
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .. import operations
from ..operations import QueueStats
from ..operations.batches import Batch
from ..operations.counting import CAP
from ..operations.mass_changes import in_states
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ._batches import STOPPED, BatchTotals, in_transactions
from ._database import transact
from ._output import complain, confirm, print_json, say, tasks

_DUE = (
    "runs once it is due."
    " To run it now: UPDATE {table} SET status = 'available', available_at = '2000-01-01 00:00:00' WHERE ..."
)
_FINAL = "is final; sqlqueue rerun makes it run again."
_HINTS = {
    Status.AVAILABLE: "An available task is claimed by the next free worker, unless sqlqueue stats shows it as paused.",
    Status.SCHEDULED: f"A scheduled task {_DUE}",
    Status.RETRYABLE: "A retryable task runs again once it is due; sqlqueue retry makes it due now.",
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
    spec: QueueSpec
    where: Sequence[Criterion]
    affected: Collection[Status]
    batches: Callable[[Session], Iterable[Batch]]
    """A function that carries out the change, in batches that each commit."""
    named: bool = False
    """Whether tasks were selected by key; the command then explains why none was changed."""
    hung: bool = False
    """Whether running tasks whose lease has expired are affected too."""
    ends_all: bool = False
    """Whether it ends all tasks of the queue, for want of a filter: even one needs confirmation."""
    deletes: bool = False
    """Whether rows are deleted; rows that foreign keys reference are kept."""

    def carry_out(self, url: str, *, yes: bool, as_json: bool) -> None:
        """Count the tasks, ask for confirmation if there are several, change them, and print how many were changed."""
        stats = transact(url, self._counted)
        found = {**{str(status): stats[status] for status in self.affected}, "hung": stats.hung if self.hung else 0}
        counts = {what: number for what, number in found.items() if number}
        number = sum(counts.values())
        is_capped = not stats.capped.isdisjoint(counts)
        if number:
            parts = ", ".join(f"{part}{'+' if what in stats.capped else ''} {what}" for what, part in counts.items())
            if number > 1 or self.ends_all:
                many = f"{'at least ' if is_capped else ''}{tasks(number, self.spec)}"
                confirm(f"{self.verb} {many} ({parts})", yes=yes)
        totals = BatchTotals()
        try:
            if number:
                in_transactions(url, self.batches, totals, what=self.verb, total=None if is_capped else number)
        except DBAPIError:
            complain(f"{self._told(totals)} These changes are committed; then an error occurred.")
            raise
        if as_json:
            done = {"tasks": totals.changed, **self._kept(totals), "stopped": totals.stopped}
            print_json({"queue": self.spec.table.fullname, "action": self.verb, **done})
        else:
            say(self._told(totals))
            if not totals.changed and self.named:
                say(self._why_none(stats))
        if totals.stopped:
            complain("Stopped. Finished batches are committed; run the same command again for the rest.")
            raise typer.Exit(STOPPED)

    def _counted(self, session: Session) -> QueueStats:
        """Count the named tasks, or without names only the affected ones, which the cap on counting could otherwise
        hide."""
        where = self.where if self.named else [*self.where, in_states(self.spec, self.affected, hung=self.hung)]
        return operations.stats(session, self.spec.entity, *where, cap=CAP)

    def _told(self, totals: BatchTotals) -> str:
        number = totals.changed
        told = f"{tasks(number, self.spec)} {'is' if number == 1 else 'are'} {self.done}."
        if totals.taken:
            told += f"\n{totals.taken} could not be changed: another task has the same unique_key."
        if totals.protected:
            stay = (
                "is kept: foreign keys reference it"
                if totals.protected == 1
                else "are kept: foreign keys reference them"
            )
            told += f"\n{tasks(totals.protected, self.spec)} {stay}."
        return told

    def _kept(self, totals: BatchTotals) -> dict[str, int]:
        return {"protected": totals.protected} if self.deletes else {"taken": totals.taken}

    def _why_none(self, stats: QueueStats) -> str:
        """Return the states of the named tasks, and hints for each."""
        found = [status for status in Status if stats[status]]
        if not found:
            return "There is no such task."
        states = ", ".join(f"{stats[status]} {status}" for status in found)
        hints = [_HINTS[status].format(table=self.spec.table.fullname) for status in found]
        affected = ", ".join([*self.affected, *(["hung"] if self.hung else [])])
        return f"Found: {states}. sqlqueue {self.verb} changes {affected}.\n" + "\n".join(dict.fromkeys(hints))
