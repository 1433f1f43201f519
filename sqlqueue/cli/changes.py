"""The commands that change tasks: ``sqlqueue retry``, ``cancel``, ``discard`` and ``prune``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer
from sqlalchemy import or_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .. import operations
from ..operations import QueueStats
from ..operations.batches import Batch, in_batches
from ..operations.counting import CAP
from ..operations.pruning import is_prunable
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import FINAL, Status
from ..sql.selection import is_hung, only, state
from ._batches import STOPPED, Outcome, in_transactions
from ._database import refusals, transact
from ._filters import Age, Equal, ErrorLike, Hung, Ids, Statuses, Topic, criteria
from ._output import AsJson, Yes, complain, confirm, print_json, refusal, say, tasks
from ._queue import Queue, queue_of
from ._target import Target, Url
from ._values import age

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Kept as the error of each, for those who find it later.")]
Final = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        parser=age,
        help="Finished longer ago than 90s, 15m, 2h, 7d; else as long ago as the model says.",
    ),
]
Adopted = Annotated[
    bool,
    typer.Option("--adopted", help="Delete rows from before the table became a queue instead, by created_at."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at the most; else all.")]

_DUE = (
    "is run by a worker once it is due."
    " To run it now: UPDATE {table} SET status = 'available', available_at = '2000-01-01 00:00:00' WHERE ..."
)
_FINAL = "is final: enqueue it again to have it run again."
_HINTS = {
    Status.AVAILABLE: "An available task is claimed by the next free worker, unless sqlqueue stats shows it as paused.",
    Status.SCHEDULED: f"A scheduled task {_DUE}",
    Status.RETRYABLE: "A retryable task is tried again once it is due; sqlqueue retry makes that now.",
    Status.RUNNING: "A running task belongs to its worker until its lease ends; then any worker takes it over.",
    Status.COMPLETED: f"A completed task {_FINAL}",
    Status.CANCELLED: f"A cancelled task {_FINAL}",
    Status.DISCARDED: "A discarded task is a dead letter; sqlqueue retry brings it back.",
}
_FAILED = (Status.RETRYABLE, Status.DISCARDED)
_UNFINISHED = [status for status in Status if status not in FINAL]
BATCH = 1_000
"""Rows that one transaction changes, or deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is to become of which tasks."""

    verb: str
    done: str
    spec: QueueSpec
    where: Sequence[Criterion]
    affected: Collection[Status]
    batches: Callable[[Session], Iterable[Batch]]
    """Each commits itself."""
    named: bool = False
    """Whether tasks were chosen by their keys: whoever does that wants to know why nothing became of them."""
    hung: bool = False
    """Whether those of the running ones are affected, too, whose lease has ended."""
    deletes: bool = False
    """Whether rows are deleted: those that foreign keys refer to stay."""

    def carry_out(self, url: str, *, yes: bool, as_json: bool) -> None:
        """Count them, ask if they are many, change them, and say how many were changed."""
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
            complain(f"{self._told(outcome)} That is committed; then there was an error.")
            raise
        if as_json:
            done = {"tasks": outcome.changed, **self._kept(outcome), "stopped": outcome.stopped}
            print_json({"queue": self.spec.table.fullname, "action": self.verb, **done})
        else:
            say(self._told(outcome))
            if not outcome.changed and self.named:
                say(self._why_none(stats))
        if outcome.stopped:
            complain("Stopped. What is done is committed; the same command goes on with the rest.")
            raise typer.Exit(STOPPED)

    def _counted(self, session: Session) -> QueueStats:
        """All that were named, or those that are affected: among others, counting might end before it reaches these."""
        where = self.where if self.named else [*self.where, _in_state(self.spec, self.affected, hung=self.hung)]
        return operations.stats(session, self.spec.entity, *where, cap=CAP)

    def _told(self, outcome: Outcome) -> str:
        number = outcome.changed
        told = f"{tasks(number, self.spec)} {'is' if number == 1 else 'are'} {self.done}."
        if outcome.taken:
            told += f"\n{outcome.taken} cannot be: another task has taken the unique_key."
        if outcome.protected:
            stay = "stays: foreign keys refer to it" if outcome.protected == 1 else "stay: foreign keys refer to them"
            told += f"\n{tasks(outcome.protected, self.spec)} {stay}."
        return told

    def _kept(self, outcome: Outcome) -> dict[str, int]:
        return {"protected": outcome.protected} if self.deletes else {"taken": outcome.taken}

    def _why_none(self, stats: QueueStats) -> str:
        """What the tasks are that were named, and what would help."""
        found = [status for status in Status if stats[status]]
        if not found:
            return "There is no such task."
        states = ", ".join(f"{stats[status]} {status}" for status in found)
        hints = [_HINTS[status].format(table=self.spec.table.fullname) for status in found]
        affected = ", ".join([*self.affected, *(["hung"] if self.hung else [])])
        return f"Found: {states}. sqlqueue {self.verb} is for {affected}.\n" + "\n".join(dict.fromkeys(hints))


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
    """Try again what has failed or hangs: retryable and discarded tasks, and running ones whose lease has ended.

    They become available, with all their attempts again.

        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error 'ConnectionError%'

    Without a filter these are all of them. More than one is asked about first, with their number.

    A thousand at a time, each in a transaction of its own: Ctrl-C ends it after the present one, and what is done stays
    done.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has taken the unique_key) and stopped (by Ctrl-C).

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes; 130 if it was stopped.
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
            affected=_FAILED,
            named=bool(ids),
            hung=True,
            batches=lambda session: _in_batches(session, spec, chosen, _FAILED, operations.retry, hung=True),
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
    """Say that tasks are no longer wanted: all that are not final become cancelled, running ones included.

        sqlqueue cancel --url postgresql+psycopg://me@host/shop shop.models:Email --where campaign_id=12

    What runs is told at its next heartbeat; it can no longer complete its task, nor commit with it.
    More than one is asked about first, with their number.

    A thousand at a time, each in a transaction of its own: Ctrl-C ends it after the present one, and what is done stays
    done.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has taken the unique_key) and stopped (by Ctrl-C).

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes; 130 if it was stopped.
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
            affected=_UNFINISHED,
            named=bool(ids),
            batches=lambda session: _in_batches(session, spec, chosen, _UNFINISHED, operations.cancel),
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
    """Give tasks up: all that are not final become dead letters, running ones included.

        sqlqueue discard --url postgresql+psycopg://me@host/shop shop.models:Email --id 4711 --reason 'no such address'

    What runs is told at its next heartbeat; it can no longer complete its task, nor commit with it. sqlqueue retry
    brings dead letters back. More than one is asked about first, with their number.

    A thousand at a time, each in a transaction of its own: Ctrl-C ends it after the present one, and what is done stays
    done.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has taken the unique_key) and stopped (by Ctrl-C).

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes; 130 if it was stopped.
    """
    with refusals("discard"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        discarding: Callable[..., int] = partial(operations.discard, error=reason)  # type: ignore[assignment]
        _Change(
            verb="discard",
            done="discarded",
            spec=spec,
            where=chosen,
            affected=_UNFINISHED,
            named=bool(ids),
            batches=lambda session: _in_batches(session, spec, chosen, _UNFINISHED, discarding),
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
    """Delete what the queue finished long ago: completed, cancelled and discarded tasks, dead letters included.

        sqlqueue prune --url postgresql+psycopg://me@host/shop shop.models:Email --older-than 30d

    Rows that were in the table before it became a queue stay, unless --adopted asks for exactly these. So do rows that
    foreign keys refer to. More than one is asked about first, with their number.

    A thousand at a time, each in a transaction of its own: Ctrl-C ends it after the present one, and what is done stays
    done.

    With --json: an object of queue, action, tasks (how many were deleted), protected (how many stay, because foreign
    keys refer to them) and stopped (by Ctrl-C).

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes; 130 if it was stopped.
    """
    with refusals("prune"):
        spec = queue_of(target, queue)
        if older_than is None and (adopted or not spec.options.prunes):
            reason = "--adopted has no age of its own" if adopted else f"{spec.entity.__name__} has no retention"
            raise refusal(f"{reason}: say --older-than")
        _Change(
            verb="prune",
            done="deleted",
            spec=spec,
            where=[is_prunable(spec, older_than, adopted=adopted)],
            affected=FINAL,
            batches=lambda session: _prune(session, spec, older_than, limit, adopted=adopted),
            deletes=True,
        ).carry_out(url, yes=yes, as_json=as_json)


def _in_batches(
    session: Session,
    spec: QueueSpec,
    where: Sequence[Criterion],
    affected: Iterable[Status],
    change: Callable[..., int],
    *,
    hung: bool = False,
) -> Iterator[Batch]:
    """``change`` what is in one of the states ``affected``, or ``hung``, in the order in which it is found."""
    chosen = only(spec, _in_state(spec, affected, hung=hung), *where)
    return in_batches(session, spec, chosen, lambda some: change(session, spec.entity, some, *where), size=BATCH)


def _in_state(spec: QueueSpec, affected: Iterable[Status], *, hung: bool) -> Criterion:
    in_state = spec["status"].in_([state(status) for status in affected])
    return or_(in_state, is_hung(spec)) if hung else in_state


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
