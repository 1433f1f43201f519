"""Statistics of queues, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from ..operations import Bucket, Durations, QueueOverview, QueueStats
from ..operations.counting import CAP
from ..operations.pausing import Pause
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ._output import pauses, print_json, print_table, say

QueueFigures = tuple[QueueSpec, QueueOverview, list[Pause]]
_ALWAYS = (Status.AVAILABLE, Status.RUNNING)


def print_figures(found: Sequence[QueueFigures], *, as_json: bool) -> None:
    """Print one line for each queue, or a JSON array."""
    if as_json:
        print_json([_figures(*each) for each in found])
        return
    present = _present(each for _, each, _ in found)
    rows = [
        [
            spec.entity.__name__,
            *_numbers(each, present),
            _at_least(_whole(each.oldest_claimable), "oldest_claimable", each),
            _at_least(each.finished_last_hour, "finished_last_hour", each),
            _paused(stops),
        ]
        for spec, each, stops in found
    ]
    print_table(["Queue", *present, "hung", "oldest", "last hour", "paused"], rows, numbers=len(present) + 3)
    for spec, each, _ in found:
        for name, age in each.unserved_functions.items():
            say(
                f"{spec.entity.__name__}: no worker seems to have the function {name} registered; its calls have been "
                f"waiting for {_whole(age)}."
            )
        for status, number in each.unknown.items():
            say(
                f"{spec.entity.__name__}: {number:,} {'row has' if number == 1 else 'rows have'} the status {status!r},"
                " which sqlqueue does not know: no claim finds them."
            )
    if any(each.capped for _, each, _ in found):
        say(f"+ means at least: at most {CAP:,} tasks are counted per group of states. --exact counts all.")


def _figures(spec: QueueSpec, found: QueueOverview, stops: list[Pause]) -> dict[str, Any]:
    return {
        "queue": spec.table.fullname,
        "model": f"{spec.entity.__module__}.{spec.entity.__qualname__}",
        **_counts(found),
        "claimable": found.claimable,
        "overdue": found.overdue,
        "oldest_claimable": _seconds(found.oldest_claimable),
        "oldest_running": _seconds(found.oldest_running),
        "finished_last_minute": found.finished_last_minute,
        "finished_last_hour": found.finished_last_hour,
        "unserved_functions": {name: _seconds(age) for name, age in found.unserved_functions.items()},
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
    rows = [[_named(value), *_numbers(each, present)] for value, each in found.items()]
    print_table([name, *present, "hung"], rows, numbers=len(present) + 1)


def print_timeline(found: Iterable[Bucket], *, as_json: bool) -> None:
    """Print one line for each bucket of time, or a JSON array."""
    if as_json:
        print_json([_bucket(each) for each in found])
        return
    rows = [
        [each.start, each.completed, each.failed, each.cancelled, *_spread(each.run_time), *_spread(each.waiting_time)]
        for each in found
    ]
    ends, spreads = ["completed", "failed", "cancelled"], ["run p50", "run p95", "wait p50", "wait p95"]
    print_table(["From", *ends, *spreads], rows, numbers=len(ends) + len(spreads))


def _bucket(found: Bucket) -> dict[str, Any]:
    return {
        "start": found.start,
        "completed": found.completed,
        "failed": found.failed,
        "cancelled": found.cancelled,
        "attempts": found.attempts,
        "run_time": _durations(found.run_time),
        "waiting_time": _durations(found.waiting_time),
    }


def _durations(found: Durations) -> dict[str, Any]:
    spread = {name: _seconds(getattr(found, name)) for name in ("mean", "p50", "p95")}
    return {"count": found.count, **spread}


def _counts(found: QueueStats) -> dict[str, int]:
    by_state = {status.value: number for status, number in found.counts.items()}
    return {**by_state, "hung": found.hung, "total": found.total, "unfinished": found.unfinished}


def _present(found: Iterable[QueueStats]) -> list[Status]:
    """Return the states to show: those with tasks, those whose counting stopped early, and those always shown."""
    all_of_them = list(found)
    return [
        status
        for status in Status
        if status in _ALWAYS or any(each[status] or status in each.capped for each in all_of_them)
    ]


def _numbers(found: QueueStats, present: Iterable[Status]) -> list[object]:
    return [*(_at_least(found[status], status, found) for status in present), _at_least(found.hung, "hung", found)]


def _at_least(figure: object, name: str, found: QueueStats) -> object:
    """Return ``figure`` with a + if it is a lower bound."""
    if name not in found.capped:
        return figure
    return f"{figure:,}+" if isinstance(figure, int) else f"{figure}+"


def _paused(stops: Iterable[Pause]) -> str:
    return ", ".join("all" if each.topic is None else each.topic for each in stops)


def _named(value: object) -> object:
    return "(none)" if value is None else value


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


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()
