"""The commands ``stats`` and ``errors``, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.texts import key_text
from ..operations import CAP, LAST, Bucket, Durations, ErrorGroup, Pause, QueueOverview, QueueStats, paused
from ..operations.filtering import column
from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec
from ._options import AsJson, Filters, Queues, duration
from ._output import complain, facts, pauses, print_json, print_table, refusal, repeated, say

# -- statistics of queues, as tables for people and as JSON for programs ----------------------------------------------

QueueFigures = tuple[QueueSpec, QueueOverview, list[Pause]]
_ALWAYS = (Status.AVAILABLE, Status.RUNNING)


def print_figures(found: Sequence[QueueFigures], *, as_json: bool) -> None:
    """Print one line for each queue, or a JSON array."""
    if as_json:
        print_json([_queue_figures(*each) for each in found])
        return
    present = _present(each for _, each, _ in found)
    rows = [
        [
            spec.name,
            *_numbers(each, present),
            _at_least(_whole(each.oldest_claimable), "oldest_claimable", each),
            _at_least(each.finished_last_hour, "finished_last_hour", each),
            ", ".join("all" if stop.part is None else stop.topic or str(stop.key) for stop in stops),
        ]
        for spec, each, stops in found
    ]
    print_table(["Queue", *present, "abandoned", "oldest", "last hour", "paused"], rows, numbers=len(present) + 3)
    for spec, each, _ in found:
        for name, waiting in each.unserved_functions.items():
            say(
                f"{spec.name}: no worker seems to have the function {name} registered; its calls have been "
                f"waiting for {_whole(waiting)}."
            )
        for status, number in each.unknown.items():
            say(
                f"{spec.name}: {number:,} {'row has' if number == 1 else 'rows have'} the status {status!r},"
                " which sqlqueue does not know: no claim finds them."
            )
    if any(each.capped for _, each, _ in found):
        say(f"+ means at least: at most {CAP:,} tasks are counted per group of states. --exact counts all.")


def _queue_figures(spec: QueueSpec, found: QueueOverview, stops: list[Pause]) -> dict[str, Any]:
    return {
        "queue": spec.name,
        "model": f"{spec.entity.__module__}.{spec.entity.__qualname__}",
        **_counts(found),
        **facts(found, "claimable", "limited", "overdue", "oldest_claimable", "oldest_running"),
        **facts(found, "finished_last_minute", "finished_last_hour"),
        "unserved_functions": {name: age.total_seconds() for name, age in found.unserved_functions.items()},
        "unknown": dict(found.unknown),
        "capped": sorted(found.capped),
        "paused": pauses(stops),
    }


def print_by(name: str, found: Mapping[Any, QueueStats], *, as_json: bool) -> None:
    """Print one line for each value of the column ``name``, or a JSON array."""
    if as_json:
        print_json([{"value": value, **_counts(each)} for value, each in found.items()])
        return
    present = _present(found.values())
    rows = [["(none)" if value is None else value, *_numbers(each, present)] for value, each in found.items()]
    print_table([name, *present, "abandoned"], rows, numbers=len(present) + 1)


def print_timeline(found: Iterable[Bucket], *, as_json: bool) -> None:
    """Print one line for each bucket of time, or a JSON array."""
    if as_json:
        print_json([_bucket_facts(each) for each in found])
        return
    rows = [
        [each.start, each.completed, each.failed, each.cancelled, *_spread(each.run_time), *_spread(each.waiting_time)]
        for each in found
    ]
    ends, spreads = ["completed", "failed", "cancelled"], ["run p50", "run p95", "wait p50", "wait p95"]
    print_table(["From", *ends, *spreads], rows, numbers=len(ends) + len(spreads))


def _bucket_facts(found: Bucket) -> dict[str, Any]:
    return {
        **facts(found, "start", "completed", "failed", "cancelled", "attempts"),
        "run_time": facts(found.run_time, "count", "mean", "p50", "p95"),
        "waiting_time": facts(found.waiting_time, "count", "mean", "p50", "p95"),
    }


def _counts(found: QueueStats) -> dict[str, int]:
    by_state = {status.value: number for status, number in found.counts.items()}
    return {**by_state, "abandoned": found.abandoned, "total": found.total, "unfinished": found.unfinished}


def _present(found: Iterable[QueueStats]) -> list[Status]:
    """Return the states to show: those with tasks, those whose counting stopped early, and those always shown."""
    all_of_them = list(found)
    return [
        status
        for status in Status
        if status in _ALWAYS or any(each[status] or status in each.capped for each in all_of_them)
    ]


def _numbers(found: QueueStats, present: Iterable[Status]) -> list[object]:
    return [
        *(_at_least(found[status], status, found) for status in present),
        _at_least(found.abandoned, "abandoned", found),
    ]


def _at_least(figure: object, name: str, found: QueueStats) -> object:
    """Return ``figure`` with a + if it is a lower bound."""
    if name not in found.capped:
        return figure
    return f"{figure:,}+" if isinstance(figure, int) else f"{figure}+"


def _spread(found: Durations) -> list[str]:
    return [_short(found.p50), _short(found.p95)]


def _short(time: timedelta | None) -> str:
    """Return ``7ms`` or ``1.5s``, or whole seconds for a minute or more."""
    if time is None or abs(time) >= timedelta(minutes=1):
        return _whole(time)
    seconds = time.total_seconds()
    return f"{seconds * 1000:.0f}ms" if abs(seconds) < 1 else f"{seconds:.1f}s"


def _whole(time: timedelta | None) -> str:
    return "" if time is None else str(timedelta(seconds=round(time.total_seconds())))


# -- the commands `sqlqueue stats` and `sqlqueue errors` --------------------------------------------------------------

Most = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of lines.")]
By = Annotated[str | None, typer.Option("--by", metavar="COLUMN", help="Count one queue by the values of this column.")]
Exact = Annotated[bool, typer.Option("--exact", help="Count everything, however long it takes.")]
Timeline = Annotated[bool, typer.Option("--timeline", help="Show one queue over time: finished tasks and their times.")]
BucketSize = Annotated[
    timedelta | None, duration("--bucket", text="With --timeline: the time that one line covers. Default: 1h.")
]
Watch = Annotated[
    float | None,
    typer.Option("--watch", metavar="SECONDS", min=0.1, help="Print it again every so many seconds, until Ctrl-C."),
]
Since = Annotated[
    timedelta | None, duration("--since", metavar="AGE", text="With --timeline: how far back it goes. Default: 1d.")
]


def stats(
    queues: Queues,
    *,
    by: By = None,
    timeline: Timeline = False,
    bucket: BucketSize = None,
    since: Since = None,
    filters: Filters,
    exact: Exact = False,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Show how many tasks each queue has, by state, and what is paused.

        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Base
        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Email --by topic
        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Email --timeline --bucket 15m --since 6h

    "abandoned" counts running tasks whose lease has expired: their workers have crashed or were cut off, and any worker
    may take them over. "oldest" is how long the first claimable task has been waiting, "last hour" the number of tasks
    finished within it. States without tasks are left out. A figure with a + is a lower bound: at most 50,000 tasks are
    counted in each of three groups (available, otherwise unfinished, final); --exact counts all. Below the table are
    the functions whose calls have waited for more than five minutes while none was running: no worker seems to have
    them registered; and rows whose status sqlqueue does not know, which no claim finds.

    With --batch: the members of a batch, of the queues that can have some.

    With --timeline: the tasks finished in each hour (--bucket) of the last day (--since), in UTC. With a HistoryMixin,
    and without options that select tasks, it shows the attempts that ended instead: "failed" counts those that failed,
    were discarded or crashed, retried or not. For the completed ones, p50 and p95 are the median and 95th percentile of
    their run time, and of the waiting time of tasks since creation.

    With --json: an array of objects with queue (its table), model, a number for each state, abandoned, total,
    unfinished, claimable, limited, overdue, oldest_claimable, oldest_running, finished_last_minute, finished_last_hour,
    unserved_functions (how long their calls have waited), unknown (the number of rows with each unknown status), capped
    (an array of the names of lower bounds) and paused: an array of topic (null for the whole queue), paused_at,
    paused_by and reason.
    With --by: value, the states, abandoned, total and unfinished. With --timeline: start, completed, failed, cancelled,
    attempts (whether these are attempts, instead of tasks), and run_time and waiting_time, with count, mean, p50 and
    p95. All times are in seconds.

    With --watch, the output is printed again every few seconds, until Ctrl-C; a terminal is cleared each time.

    Exit status: 0; 2 for bad usage or a database that does not respond.
    """
    if watch is not None and as_json:
        raise refusal("--watch is for people: leave out --json")
    if (by and timeline) or ((bucket or since) and not timeline):
        raise refusal("--bucket and --since need --timeline, which cannot be combined with --by")
    specs = [queues.only] if by or timeline else queues.chosen if filters.batch is None else queues.with_batches
    chosen = [(spec, filters.criteria(spec)) for spec in specs]
    filters.verify(queues, specs[0])
    spec, criteria = chosen[0]
    bucket, since, cap = bucket or timedelta(hours=1), since or timedelta(days=1), None if exact else CAP
    for _ in repeated(watch):
        if by:
            counts = queues.transact(
                lambda session: operations.stats_by(session, spec.entity, column(spec, by), *criteria), spec
            )
            print_by(by, counts, as_json=as_json)
        elif timeline:
            found = queues.transact(
                lambda session: operations.timeline(session, spec.entity, *criteria, bucket=bucket, since=since), spec
            )
            print_timeline(found, as_json=as_json)
        else:
            figures = queues.transact(lambda session: [_figures(*each, cap, session) for each in chosen], *specs)
            print_figures(figures, as_json=as_json)


def _figures(spec: QueueSpec, where: Sequence[Criterion], cap: int | None, session: Session) -> QueueFigures:
    return spec, operations.overview(session, spec.entity, *where, cap=cap), paused(session, spec.entity)


def errors(
    queues: Queues, *, filters: Filters, limit: Most = 20, exact: Exact = False, as_json: AsJson = False
) -> None:
    """Show a queue's failures in groups: those whose errors differ only in numbers, addresses, quoted text and the
    like. The most frequent come first.

        sqlqueue errors --url postgresql+psycopg://me@host/shop shop.models:Email
        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Email --error-group 2cfd2c4546ee

    "tasks" counts those that are not completed, by their last error: --error-group selects them in sqlqueue list,
    retry, rerun, cancel and discard. "attempts" counts failed attempts, whatever became of their tasks, with a
    HistoryMixin and without options that select tasks. "because of" is the task whose failure cancelled the newest one,
    which waited for it.

    The last 20,000 attempts are read, and 20,000 tasks in each of three groups of states (available, otherwise
    unfinished, final), of final ones the last. If there are more, a figure has a +. --exact reads all, however long it
    takes.

    With --json: an array of objects with key (for --error-group), pattern (what the errors have in common), message
    (the newest one), tasks, unfinished (how many of these are not final), retriable (how many sqlqueue retry changes),
    attempts (null if not counted), functions (of function jobs), first_seen, last_seen (when attempts ended, or tasks
    were claimed), example (the key of a task; null if the history has only its hash), because_of (model and key of the
    task whose failure cancelled the newest one; else null) and capped (an array of the names of lower bounds).

    Exit status: 0, even without errors; 2 for bad usage or a database that does not respond.
    """
    spec = queues.only
    cap = None if exact else LAST
    chosen = filters.criteria(spec)
    filters.verify(queues, spec)
    found = queues.transact(lambda session: operations.errors(session, spec.entity, *chosen, cap=cap), spec)
    if as_json:
        print_json([_failed(group) for group in found[:limit]])
    elif found:
        _print_groups(found[:limit])
    else:
        say(f"{spec.name} has no such errors.")
    if len(found) > limit:
        rest = found[limit:]
        groups = f"{len(rest):,} more group{'s' if len(rest) > 1 else ''}"
        complain(f"{groups} (tasks: {sum(each.tasks for each in rest):,}): --limit shows them.")


def _print_groups(found: Sequence[ErrorGroup]) -> None:
    """Print a small table for each group, with one fact on a line: keys are whole, to be copied."""
    for number, group in enumerate(found):
        if number:
            say("")
        shown = {
            "group": group.key,
            "tasks": _at_least_of(group, "tasks"),
            "unfinished": _at_least_of(group, "unfinished") if group.unfinished else None,
            "attempts": _at_least_of(group, "attempts"),
            "functions": ", ".join(group.functions),
            "first": group.first_seen,
            "last": group.last_seen,
            "example": _example(group),
            "because of": group.because_of and f"{' '.join(group.because_of)}: retry that, and these wait again",
            "newest": None if group.message == group.pattern else group.message,
        }
        rows = [(name, fact) for name, fact in shown.items() if fact not in (None, "")]
        print_table(["error", group.pattern], rows, keeps_lines=True)
    if found[0].capped:
        say(f"+ means at least: only the last {LAST:,} in each group of states are read. --exact reads all.")


def _at_least_of(group: ErrorGroup, name: str) -> str | None:
    number = getattr(group, name)
    return None if number is None else f"{number:,}{'+' if name in group.capped else ''}"


def _example(group: ErrorGroup) -> str | None:
    return None if group.example is None else key_text(group.example)


def _failed(group: ErrorGroup) -> dict[str, object]:
    return {
        **facts(group, "key", "pattern", "message", "tasks", "unfinished", "retriable", "attempts", "functions"),
        **facts(group, "first_seen", "last_seen"),
        "example": _example(group),
        "because_of": group.because_of and dict(zip(("model", "key"), group.because_of, strict=True)),
        "capped": sorted(group.capped),
    }
