"""The commands that change tasks: ``sqlqueue retry``, ``cancel``, ``discard`` and ``prune``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from .. import operations
from ..operations.sets import is_old
from ..spec import Criterion, QueueSpec
from ..states import FINAL, Status
from ._database import refusals, transact
from ._filters import Age, Equal, ErrorLike, Hung, Ids, Statuses, Topic, criteria
from ._output import AsJson, Yes, confirm, print_json, say, tasks
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
        help="Final for longer than 90s, 15m, 2h, 7d; else as long as the model says.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at the most; else all.")]

_UNFINISHED = [status for status in Status if status not in FINAL]
BATCH = 1_000
"""Rows that one transaction deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is to become of which tasks."""

    verb: str
    done: str
    spec: QueueSpec
    where: Sequence[Criterion]
    affected: Collection[Status]
    function: Callable[[Session], int]
    hung: bool = False
    """Whether those of the running ones are affected, too, whose lease has ended."""

    def carry_out(self, url: str, *, yes: bool, as_json: bool) -> None:
        """Count them, ask if they are many, change them, and say how many it were."""
        stats = transact(url, lambda session: operations.stats(session, self.spec.entity, *self.where))
        found = {**{str(status): stats[status] for status in self.affected}, "hung": stats.hung if self.hung else 0}
        counts = {what: number for what, number in found.items() if number}
        number = sum(counts.values())
        if number:
            parts = ", ".join(f"{part} {what}" for what, part in counts.items())
            confirm(f"{self.verb} {tasks(number, self.spec)} ({parts})", number, yes=yes)
            number = transact(url, self.function)
        if as_json:
            print_json({"queue": self.spec.table.fullname, "action": self.verb, "tasks": number})
        else:
            say(f"{tasks(number, self.spec)} {'is' if number == 1 else 'are'} {self.done}.")


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

    They become available, with all attempts anew.

        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error 'ConnectionError%'

    Without a filter these are all of them. More than one is asked about first, with their number.

    With --json: an object of queue, action and tasks, the number.

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes.
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
            affected=(Status.RETRYABLE, Status.DISCARDED),
            hung=True,
            function=lambda session: operations.retry(session, spec.entity, *chosen),
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

    With --json: an object of queue, action and tasks, the number.

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes.
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
            function=lambda session: operations.cancel(session, spec.entity, *chosen),
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

    With --json: an object of queue, action and tasks, the number.

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes.
    """
    with refusals("discard"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        _Change(
            verb="discard",
            done="discarded",
            spec=spec,
            where=chosen,
            affected=_UNFINISHED,
            function=lambda session: operations.discard(session, spec.entity, *chosen, error=reason),
        ).carry_out(url, yes=yes, as_json=as_json)


def prune(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    older_than: Final = None,
    limit: Limit = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete what has long been final: completed, cancelled and discarded tasks, dead letters included.

        sqlqueue prune --url postgresql+psycopg://me@host/shop shop.models:Email --older-than 30d

    A thousand at a time, each in a transaction of its own. More than one is asked about first, with their number.

    With --json: an object of queue, action and tasks, the number.

    Exit status: 0, tasks or not; 1 if the question is answered by no; 2 for bad usage, a database that does not answer,
    or no terminal to ask and no --yes.
    """
    with refusals("prune"):
        spec = queue_of(target, queue)
        if older_than is None and not spec.options.prunes:
            raise typer.BadParameter(f"{spec.entity.__name__} has no retention: say --older-than")
        _Change(
            verb="prune",
            done="deleted",
            spec=spec,
            where=[is_old(spec, older_than)],
            affected=FINAL,
            function=lambda session: _prune(session, spec, older_than, limit),
        ).carry_out(url, yes=yes, as_json=as_json)


def _prune(session: Session, spec: QueueSpec, older_than: timedelta | None, limit: int | None) -> int:
    pruned = 0
    while limit is None or pruned < limit:
        batch = BATCH if limit is None else min(BATCH, limit - pruned)
        gone = operations.prune(session, spec.entity, older_than, limit=batch)
        session.commit()
        pruned += gone
        if gone < batch:
            break
    return pruned
