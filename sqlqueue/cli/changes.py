"""The commands that change tasks: ``sqlqueue retry``, ``cancel``, ``discard`` and ``prune``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .. import operations
from ..operations import QueueStats
from ..operations.batches import Batch
from ..operations.counting import CAP
from ..operations.mass_changes import BATCH, CANCEL, RETRY, discarding, in_states
from ..operations.pruning import is_prunable
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import FINAL, Status
from ._batches import STOPPED, Outcome, in_transactions
from ._database import refusals, transact
from ._filters import Age, Equal, ErrorLike, Hung, Ids, Statuses, Topic, criteria
from ._output import AsJson, Yes, complain, confirm, print_json, refusal, say, tasks
from ._queue import Queue, queue_of
from ._target import Target, Url
from ._values import age

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Stored as the error of each task.")]
Final = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        parser=age,
        help="Only tasks that finished longer ago than this: 90s, 15m, 2h, 7d. Default: the model's retention.",
    ),
]
Adopted = Annotated[
    bool,
    typer.Option("--adopted", help="Delete instead the rows from before the table became a queue, by created_at."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of tasks. Default: all.")]

_DUE = (
    "runs once it is due."
    " To run it now: UPDATE {table} SET status = 'available', available_at = '2000-01-01 00:00:00' WHERE ..."
)
_FINAL = "is final: to run it again, enqueue it again."
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
class _Change:
    """A change of the tasks that match some criteria."""

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
    deletes: bool = False
    """Whether rows are deleted; rows that foreign keys reference stay."""

    def carry_out(self, url: str, *, yes: bool, as_json: bool) -> None:
        """Count the tasks, ask for confirmation if there are several, change them, and print how many were changed."""
        stats = transact(url, self._counted)
        found = {**{str(status): stats[status] for status in self.affected}, "hung": stats.hung if self.hung else 0}
        counts = {what: number for what, number in found.items() if number}
        number = sum(counts.values())
        is_capped = not stats.capped.isdisjoint(counts)
        if number:
            parts = ", ".join(f"{part}{'+' if what in stats.capped else ''} {what}" for what, part in counts.items())
            if number > 1:
                many = f"{'at least ' if is_capped else ''}{tasks(number, self.spec)}"
                confirm(f"{self.verb} {many} ({parts})", yes=yes)
        outcome = Outcome()
        try:
            if number:
                in_transactions(url, self.batches, outcome, what=self.verb, total=None if is_capped else number)
        except DBAPIError:
            complain(f"{self._told(outcome)} This is committed; then an error occurred.")
            raise
        if as_json:
            done = {"tasks": outcome.changed, **self._kept(outcome), "stopped": outcome.stopped}
            print_json({"queue": self.spec.table.fullname, "action": self.verb, **done})
        else:
            say(self._told(outcome))
            if not outcome.changed and self.named:
                say(self._why_none(stats))
        if outcome.stopped:
            complain("Stopped. Finished batches are committed; run the same command again for the rest.")
            raise typer.Exit(STOPPED)

    def _counted(self, session: Session) -> QueueStats:
        """Count the named tasks, or else the affected ones alone: the cap on counting could hide them among others."""
        where = self.where if self.named else [*self.where, in_states(self.spec, self.affected, hung=self.hung)]
        return operations.stats(session, self.spec.entity, *where, cap=CAP)

    def _told(self, outcome: Outcome) -> str:
        number = outcome.changed
        told = f"{tasks(number, self.spec)} {'is' if number == 1 else 'are'} {self.done}."
        if outcome.taken:
            told += f"\n{outcome.taken} cannot be: another task has the same unique_key."
        if outcome.protected:
            stay = "stays: foreign keys reference it" if outcome.protected == 1 else "stay: foreign keys reference them"
            told += f"\n{tasks(outcome.protected, self.spec)} {stay}."
        return told

    def _kept(self, outcome: Outcome) -> dict[str, int]:
        return {"protected": outcome.protected} if self.deletes else {"taken": outcome.taken}

    def _why_none(self, stats: QueueStats) -> str:
        """Return the states of the named tasks, and hints for each."""
        found = [status for status in Status if stats[status]]
        if not found:
            return "There is no such task."
        states = ", ".join(f"{stats[status]} {status}" for status in found)
        hints = [_HINTS[status].format(table=self.spec.table.fullname) for status in found]
        affected = ", ".join([*self.affected, *(["hung"] if self.hung else [])])
        return f"Found: {states}. sqlqueue {self.verb} changes {affected}.\n" + "\n".join(dict.fromkeys(hints))


def retry(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    error: ErrorLike = None,
    older_than: Age = None,
    where: Equal = None,
    hung: Hung = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retry failed or hung tasks: retryable and discarded ones, and running ones whose lease has expired.

    They become available, with all their attempts again.

        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error 'ConnectionError%'

    Without a filter, all such tasks are retried. For more than one, the command shows their number and asks first.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not answer, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    with refusals("retry"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        _Change(
            verb="retry",
            done="available again",
            spec=spec,
            where=chosen,
            affected=RETRY.states,
            named=bool(ids),
            hung=RETRY.hung,
            batches=lambda session: RETRY.in_batches(session, spec, chosen),
        ).carry_out(url, yes=yes, as_json=as_json)


def cancel(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    error: ErrorLike = None,
    older_than: Age = None,
    where: Equal = None,
    hung: Hung = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel tasks: all that are not final become cancelled, running ones included.

        sqlqueue cancel --url postgresql+psycopg://me@host/shop shop.models:Email --where campaign_id=12

    Workers learn of it at their next heartbeat; a running handler can no longer complete its task, nor commit with it.
    For more than one task, the command shows their number and asks first.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not answer, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    with refusals("cancel"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        _Change(
            verb="cancel",
            done="cancelled",
            spec=spec,
            where=chosen,
            affected=CANCEL.states,
            named=bool(ids),
            batches=lambda session: CANCEL.in_batches(session, spec, chosen),
        ).carry_out(url, yes=yes, as_json=as_json)


def discard(
    target: Target,
    *,
    url: Url,
    reason: Reason,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    error: ErrorLike = None,
    older_than: Age = None,
    where: Equal = None,
    hung: Hung = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard tasks: all that are not final become dead letters, running ones included.

        sqlqueue discard --url postgresql+psycopg://me@host/shop shop.models:Email --id 4711 --reason 'no such address'

    Workers learn of it at their next heartbeat; a running handler can no longer complete its task, nor commit with it.
    sqlqueue retry brings dead letters back. For more than one task, the command shows their number and asks first.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not answer, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    with refusals("discard"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        change = discarding(reason)
        _Change(
            verb="discard",
            done="discarded",
            spec=spec,
            where=chosen,
            affected=change.states,
            named=bool(ids),
            batches=lambda session: change.in_batches(session, spec, chosen),
        ).carry_out(url, yes=yes, as_json=as_json)


def prune(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    older_than: Final = None,
    limit: Limit = None,
    adopted: Adopted = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete tasks that finished long ago: completed, cancelled and discarded ones (dead letters).

        sqlqueue prune --url postgresql+psycopg://me@host/shop shop.models:Email --older-than 30d

    Rows from before the table became a queue stay, unless --adopted selects exactly these. Rows that foreign keys
    reference stay too. For more than one task, the command shows their number and asks first.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were deleted), protected (how many stay, because foreign
    keys reference them) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not answer, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    with refusals("prune"):
        spec = queue_of(target, queue)
        if older_than is None and (adopted or not spec.options.prunes):
            reason = "--adopted has no default age" if adopted else f"{spec.entity.__name__} has no retention"
            raise refusal(f"{reason}: use --older-than")
        _Change(
            verb="prune",
            done="deleted",
            spec=spec,
            where=[is_prunable(spec, older_than, adopted=adopted)],
            affected=FINAL,
            batches=lambda session: _prune(session, spec, older_than, limit, adopted=adopted),
            deletes=True,
        ).carry_out(url, yes=yes, as_json=as_json)


def _prune(
    session: Session, spec: QueueSpec, older_than: timedelta | None, limit: int | None, *, adopted: bool
) -> Iterator[Batch]:
    pruned = 0
    while limit is None or pruned < limit:
        number = BATCH if limit is None else min(BATCH, limit - pruned)
        gone = operations.prune(session, spec.entity, older_than, limit=number, adopted=adopted)
        session.commit()
        yield Batch(gone, protected=gone.protected)
        pruned += gone
        if gone < number:
            break
