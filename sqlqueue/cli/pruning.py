"""The command ``sqlqueue prune``, for tasks and for the history of their attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from .. import operations
from ..model.history import history_of
from ..operations.batches import BATCH, Batch
from ..operations.counting import CAP
from ..operations.history import count_old_attempts
from ..operations.pruning import Pruned, is_prunable
from ..queue.spec import QueueSpec
from ..queue.status import FINAL
from ._batches import STOPPED, BatchTotals, in_transactions
from ._change import ConfirmedChange
from ._database import refusals, transact
from ._output import AsJson, Yes, confirm, print_json, refusal, say
from ._queue import Queue, queue_of
from ._target import Target, Url
from ._values import age

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
    typer.Option("--adopted", help="Instead delete rows from before the table became a queue, by created_at."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of tasks. Default: all.")]
OfHistory = Annotated[
    bool, typer.Option("--history", help="Instead delete the history of finished attempts, by the time they ended.")
]


def prune(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
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
    with refusals("prune"):
        spec = queue_of(target, queue)
        if history:
            _prune_history(url, spec, older_than, limit, adopted=adopted, yes=yes, as_json=as_json)
            return
        if older_than is None and (adopted or not spec.options.prunes):
            reason = "--adopted has no default age" if adopted else f"{spec.entity.__name__} has no retention"
            raise refusal(f"{reason}: use --older-than")
        delete = partial(operations.prune, entity=spec.entity, older_than=older_than, adopted=adopted)
        ConfirmedChange(
            verb="prune",
            done="deleted",
            spec=spec,
            where=[is_prunable(spec, older_than, adopted=adopted)],
            affected=FINAL,
            batches=partial(_in_batches, delete=delete, limit=limit),
            deletes=True,
        ).carry_out(url, yes=yes, as_json=as_json)


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
        confirm(f"delete {many} at tasks of {spec.entity.__name__}", yes=yes)
    totals = BatchTotals()
    if number:
        delete = partial(operations.prune_history, entity=spec.entity, older_than=older_than)
        batches = partial(_in_batches, delete=delete, limit=limit)
        in_transactions(url, batches, totals, what="prune", total=None if more else number)
    if as_json:
        done = {"attempts": totals.changed, "stopped": totals.stopped}
        print_json({"queue": spec.table.fullname, "action": "prune", **done})
    else:
        number = totals.changed
        told = f"{_attempts(number)} at tasks of {spec.entity.__name__}"
        say(f"{told} {'is' if number == 1 else 'are'} deleted.")
    if totals.stopped:
        raise typer.Exit(STOPPED)


def _attempts(number: int) -> str:
    return "1 finished attempt" if number == 1 else f"{number:,} finished attempts"
