"""The commands ``sqlqueue stats`` and ``sqlqueue errors``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.error_text import key_text
from ..operations import ErrorGroup, QueueStats
from ..operations.counting import CAP
from ..operations.failures import LAST
from ..operations.filtering import column
from ..operations.pausing import paused
from ..queue.spec import Criterion, QueueSpec
from ._database import refusals, transact
from ._filters import Age, Equal, Filters, Ids, Statuses, Topic
from ._output import AsJson, print_json, print_table, refusal, say
from ._queue import Queue, queue_of, queues_of
from ._statistics import QueueFigures, print_by, print_figures, print_timeline
from ._target import Target, Url
from ._values import age

Most = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of lines.")]
By = Annotated[str | None, typer.Option("--by", metavar="COLUMN", help="Count one queue by the values of this column.")]
Exact = Annotated[bool, typer.Option("--exact", help="Count everything, however long it takes.")]
Timeline = Annotated[bool, typer.Option("--timeline", help="Show one queue over time: finished tasks and their times.")]
Bucket = Annotated[
    timedelta | None,
    typer.Option(
        "--bucket", metavar="TIME", parser=age, help="With --timeline: the time that one line covers. Default: 1h."
    ),
]
Since = Annotated[
    timedelta | None,
    typer.Option("--since", metavar="AGE", parser=age, help="With --timeline: how far back it goes. Default: 1d."),
]


def stats(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    by: By = None,
    timeline: Timeline = False,
    bucket: Bucket = None,
    since: Since = None,
    topic: Topic = None,
    where: Equal = None,
    exact: Exact = False,
    as_json: AsJson = False,
) -> None:
    """Show how many tasks each queue has, by state, and what is paused.

        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Base
        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Email --by topic
        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Email --timeline --bucket 15m --since 6h

    "hung" counts running tasks whose lease has expired: their workers have crashed or stalled, and any worker may take
    them over. "oldest" is how long the first claimable task has been waiting, "last hour" the number of tasks finished
    within it. States without tasks are left out. A figure with a + is a lower bound: at most 50,000 tasks are counted
    in each of three groups (available, otherwise unfinished, final); --exact counts all. Below the table are the
    functions whose calls have waited for more than five minutes while none was running: no worker seems to have them
    registered; and rows whose status sqlqueue does not know, which no claim finds.

    With --timeline: the tasks finished in each hour (--bucket) of the last day (--since), in UTC. With a HistoryMixin,
    and without options that select tasks, it shows the attempts that ended instead: "failed" counts those that failed,
    were discarded or crashed, retried or not. For the completed ones, p50 and p95 are the median and 95th percentile of
    their run time, and of the waiting time of tasks since creation.

    With --json: an array of objects with queue (its table), model, a number for each state, hung, total, unfinished,
    claimable, overdue, oldest_claimable, oldest_running, finished_last_minute, finished_last_hour, unserved_functions
    (how long their calls have waited), unknown (the number of rows with each unknown status), capped (an array of the
    names of lower bounds) and paused: an array of topic (null for the whole queue), paused_at, paused_by and reason.
    With --by: value, the states, hung, total and unfinished. With --timeline: start, completed, failed, cancelled,
    attempts (whether these are attempts, instead of tasks), and run_time and waiting_time, with count, mean, p50 and
    p95. All times are in seconds.

    Exit status: 0; 2 for bad usage or a database that does not respond.
    """
    with refusals("stats"):
        if (by and timeline) or ((bucket or since) and not timeline):
            raise refusal("--bucket and --since need --timeline, which cannot be combined with --by")
        specs = queues_of(target, queue) if not (by or timeline) else [queue_of(target, queue)]
        filters = Filters(topic=topic, where=where)
        chosen = [(spec, filters.criteria(spec)) for spec in specs]
        if by:
            print_by(by, transact(url, partial(_by, *chosen[0], by), *specs), as_json=as_json)
        elif timeline:
            print_timeline(transact(url, partial(_over_time, *chosen[0], bucket, since), *specs), as_json=as_json)
        else:
            cap = None if exact else CAP
            found = transact(url, lambda session: [_figures(*each, cap, session) for each in chosen], *specs)
            print_figures(found, as_json=as_json)


def _figures(spec: QueueSpec, where: Sequence[Criterion], cap: int | None, session: Session) -> QueueFigures:
    return spec, operations.overview(session, spec.entity, *where, cap=cap), paused(session, spec.entity)


def _by(spec: QueueSpec, where: Sequence[Criterion], name: str, session: Session) -> dict[Any, QueueStats]:
    return operations.stats_by(session, spec.entity, column(spec, name), *where)


def _over_time(
    spec: QueueSpec, where: Sequence[Criterion], bucket: timedelta | None, since: timedelta | None, session: Session
) -> list[operations.Bucket]:
    bucket, since = bucket or timedelta(hours=1), since or timedelta(days=1)
    return operations.timeline(session, spec.entity, *where, bucket=bucket, since=since)


def errors(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    older_than: Age = None,
    where: Equal = None,
    limit: Most = 20,
    exact: Exact = False,
    as_json: AsJson = False,
) -> None:
    """Show a queue's failures grouped by error text, the most frequent first.

        sqlqueue errors --url postgresql+psycopg://me@host/shop shop.models:Email --status discarded

    With a HistoryMixin and without options that select tasks, each failed attempt in the history counts, whatever
    became of its task. Otherwise each task that is not completed counts once, by its last error. "example" is the key
    of one of the tasks, for sqlqueue show. Only the last 20,000 failures are counted, for tasks in the order of their
    primary keys; if there are more, each figure has a +. --exact counts all.

    With --json: an array of objects with message, count, first_seen, last_seen (when attempts ended, or tasks were
    claimed), example (null if the history has only a hash of its key), capped (whether count is a lower bound) and
    attempts (whether attempts are counted, instead of tasks).

    Exit status: 0, even without errors; 2 for bad usage or a database that does not respond.
    """
    with refusals("errors"):
        spec = queue_of(target, queue)
        filters = Filters(status=status, topic=topic, ids=ids, older_than=older_than, where=where)
        cap = None if exact else LAST
        chosen = filters.criteria(spec)
        found = transact(url, lambda session: operations.errors(session, spec.entity, *chosen, cap=cap), spec)[:limit]
    if as_json:
        print_json([_failed(group) for group in found])
    elif found:
        rows = [[_example(each) or "", _count(each), each.last_seen, each.message] for each in found]
        print_table(
            ["Example", "attempts" if found[0].attempts else "tasks", "last seen", "error"],
            rows,
            numbers=1,
            keeps_lines=True,
        )
        if found[0].capped:
            order = "" if found[0].attempts else " by primary key"
            say(f"+ means at least: only the last {LAST:,} failures{order} are counted. --exact counts all.")
    else:
        say(f"{spec.entity.__name__} has no such errors.")


def _count(group: ErrorGroup) -> object:
    return f"{group.count:,}+" if group.capped else group.count


def _example(group: ErrorGroup) -> str | None:
    return None if group.example is None else key_text(group.example)


def _failed(group: ErrorGroup) -> dict[str, object]:
    return {
        "message": group.message,
        "count": group.count,
        "first_seen": group.first_seen,
        "last_seen": group.last_seen,
        "example": _example(group),
        "capped": group.capped,
        "attempts": group.attempts,
    }
