"""The commands that change tasks: ``sqlqueue retry``, ``rerun``, ``cancel`` and ``discard``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..operations.mass_changes import CANCEL, RERUN, RETRY, MassChange, discarding
from ..queue.spec import QueueSpec
from ._change import ConfirmedChange
from ._database import refusals
from ._filters import Age, Equal, ErrorLike, Filters, Hung, Ids, Statuses, Topic
from ._output import AsJson, Yes
from ._queue import Queue, queue_of
from ._target import Target, Url

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Stored as the error of each task.")]


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

    They become available, and may use all their attempts again.

        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error 'ConnectionError%'

    Without a filter, all such tasks are retried. For more than one, the command shows their number and asks for
    confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    filters = Filters(status=status, topic=topic, ids=ids, error=error, older_than=older_than, where=where, hung=hung)
    with refusals("retry"):
        change = _change("retry", "available again", RETRY, queue_of(target, queue), filters)
        change.carry_out(url, yes=yes, as_json=as_json)


def rerun(
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
    filters = Filters(status=status, topic=topic, ids=ids, error=error, older_than=older_than, where=where, hung=hung)
    with refusals("rerun"):
        change = _change("rerun", "made to run again", RERUN, queue_of(target, queue), filters)
        change.carry_out(url, yes=yes, as_json=as_json)


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

    Workers notice at their next heartbeat; a running handler can no longer complete its task or commit its writes.
    For more than one task, and without a filter, the command shows their number and asks for confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    filters = Filters(status=status, topic=topic, ids=ids, error=error, older_than=older_than, where=where, hung=hung)
    with refusals("cancel"):
        change = _change("cancel", "cancelled", CANCEL, queue_of(target, queue), filters)
        change.carry_out(url, yes=yes, as_json=as_json)


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

    Workers notice at their next heartbeat; a running handler can no longer complete its task or commit its writes.
    sqlqueue retry brings dead letters back. For more than one task, and without a filter, the command shows their
    number and asks for confirmation.

    Each transaction takes a thousand tasks. Ctrl-C stops after the current one; finished transactions stay committed.

    With --json: an object of queue, action, tasks (how many were changed), taken (how many could not be, because
    another task has the same unique_key) and stopped (by Ctrl-C).

    Exit status: 0, even without tasks; 1 if you answer no; 2 for bad usage, a database that does not respond, or a
    missing --yes without a terminal; 130 if it was stopped.
    """
    filters = Filters(status=status, topic=topic, ids=ids, error=error, older_than=older_than, where=where, hung=hung)
    with refusals("discard"):
        change = _change("discard", "discarded", discarding(reason), queue_of(target, queue), filters)
        change.carry_out(url, yes=yes, as_json=as_json)


def _change(verb: str, done: str, change: MassChange, spec: QueueSpec, filters: Filters) -> ConfirmedChange:
    """Return the change of the tasks that the filters select; ``done`` completes "3 tasks are"."""
    chosen = filters.criteria(spec)
    return ConfirmedChange(
        verb=verb,
        done=done,
        spec=spec,
        where=chosen,
        affected=change.states,
        named=bool(filters.ids),
        ends_all=verb in {"cancel", "discard"} and not chosen,
        hung=change.hung,
        batches=lambda session: change.in_batches(session, spec, chosen),
    )
