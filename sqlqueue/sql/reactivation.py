"""What gives an existing row a new life: an insert of the same key, and a redrive.

In the order of assignments that :mod:`.transitions` tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, case, func, literal, literal_column, null, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from .clock import utcnow
from .selection import Assignment, is_held, is_ready, state
from .transitions import ending


def _fresh_budget(spec: QueueSpec) -> ColumnElement[int]:
    return spec["attempt"] + literal_column(str(spec.options.max_attempts))


def replacing(
    spec: QueueSpec,
    names: Iterable[str],
    proposed: Callable[[str], ColumnElement[Any]],
    *,
    rerun: bool,
    version: Column[Any] | None = None,
) -> list[Assignment]:
    """What an existing row is given by an insert of the same key: the columns ``names``, and a new life.

    A row that is running keeps its run; ``rerun`` takes away its ``claimed_at``, by which completion knows.  With a
    ``version``, all that only if the proposed one is greater.
    """
    assignments = _replacing(spec, set(names), proposed, rerun=rerun)
    if version is None:
        return assignments
    newer = or_(version.is_(None), proposed(version.name) > version)
    guarded = [(column, case((newer, value), else_=column)) for column, value in assignments if column is not version]
    return [*guarded, (version, case((newer, proposed(version.name)), else_=version))]


def _replacing(
    spec: QueueSpec, names: set[str], proposed: Callable[[str], ColumnElement[Any]], *, rerun: bool
) -> list[Assignment]:
    queue = {spec[role].name for role in ("status", "available_at", "max_attempts", "stage") if spec.has(role)}
    running, moves = is_held(spec), spec["available_at"].name in names
    # one that is available already keeps its place, unless the place is what is being changed
    stays = or_(running, is_ready(spec)) if rerun and not moves else running
    moment = proposed(spec["available_at"].name) if moves else utcnow()
    status = proposed(spec["status"].name) if spec["status"].name in names else state(Status.AVAILABLE)
    budget = spec["max_attempts"].name
    attempts = spec["attempt"] + proposed(budget) if budget in names else _fresh_budget(spec)
    marked = [(spec["claimed_at"], case((running, null()), else_=spec["claimed_at"]))] if rerun else []
    values = keeping_slot(spec, {spec.table.c[name]: proposed(name) for name in sorted(names - queue)})
    return [
        *values,
        *marked,
        (spec["available_at"], case((stays, spec["available_at"]), else_=moment)),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((running, spec["max_attempts"]), else_=attempts)),
        *_from_the_start(spec, names, running),
        *_at_stage(spec, names, proposed, kept=None if rerun else running),
        (spec["status"], case((stays, spec["status"]), else_=status)),
    ]


def keeping_slot(spec: QueueSpec, values: Mapping[Column[Any], Any]) -> list[Assignment]:
    """``values`` for existing rows; one that is running keeps its ``limit_key``, for it holds a slot of that."""
    given = dict(values)
    if spec.has("limit_key") and spec["limit_key"] in given:
        key = spec["limit_key"]
        given[key] = case((is_held(spec), key), else_=given[key])
    return list(given.items())


def _from_the_start(spec: QueueSpec, names: Container[str], running: Criterion) -> list[Assignment]:
    """What else a new life begins with, where the insert does not say it; a run that goes on keeps what it has."""
    begin = _getting_key_back(spec)
    if spec.has("attempts_before"):
        begin.append((spec["attempts_before"], case((running, spec["attempts_before"]), else_=spec["attempt"])))
    if spec.has("scheduled_for"):
        begin.append((spec["scheduled_for"], case((running, spec["scheduled_for"]), else_=null())))
    if spec.has("result"):
        begin.append((spec["result"], case((running, spec["result"]), else_=null())))
    return [(column, value) for column, value in begin if column.name not in names]


def _at_stage(
    spec: QueueSpec, names: Container[str], proposed: Callable[[str], ColumnElement[Any]], *, kept: Criterion | None
) -> list[Assignment]:
    """At the first stage, or where the insert says.  At once, also in a run that is followed by another: whatever
    becomes of that, the other begins there."""
    if not spec.has("stage"):
        return []
    stage = spec["stage"]
    first = proposed(stage.name) if stage.name in names else literal(spec.options.stages[0], stage.type)
    return [(stage, first if kept is None else case((kept, stage), else_=first))]


def _getting_key_back(spec: QueueSpec) -> list[Assignment]:
    if not spec.has("unique_key"):
        return []
    key, former = spec["unique_key"], spec["former_key"]
    return [(key, func.coalesce(key, former)), (former, null())]


def redriving(spec: QueueSpec) -> list[Assignment]:
    """Available now, with a full budget of attempts, and the key that it had."""
    budget = _fresh_budget(spec)
    before = [(spec["attempts_before"], spec["attempt"])] if spec.has("attempts_before") else []
    return [
        *_getting_key_back(spec),
        *before,
        *([(spec["result"], null())] if spec.has("result") else []),
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((spec["max_attempts"] > budget, spec["max_attempts"]), else_=budget)),
    ]


def planning(spec: QueueSpec, moment: datetime, given: Sequence[Assignment]) -> list[Assignment]:
    """A recurring task runs next at ``moment``, whatever it was; one that is running goes on, with what is given."""
    running = is_held(spec)
    at = literal(moment, spec["available_at"].type)
    kept_plan = func.coalesce(spec["scheduled_for"], spec["claimed_at"])
    anew: list[Assignment] = [
        (spec["available_at"], at),
        (spec["finished_at"], null()),
        (spec["max_attempts"], _fresh_budget(spec)),
        (spec["attempts_before"], spec["attempt"]),
    ]
    return [
        *given,
        *_getting_key_back(spec),
        (spec["scheduled_for"], case((running, kept_plan), else_=null())),
        *((column, case((running, column), else_=value)) for column, value in anew),
        (spec["status"], case((running, spec["status"]), else_=state(Status.SCHEDULED))),
    ]


def stopping(spec: QueueSpec, running: Criterion) -> list[Assignment]:
    """A recurring task has no further run: cancelled, but for one that is running, which is an ordinary task now."""
    ended = [(column, case((running, column), else_=value)) for column, value in ending(spec, Status.CANCELLED)]
    (status,) = (each for each in ended if each[0] is spec["status"])
    rest = [each for each in ended if each is not status]
    return [*rest, (spec["schedule"], case((running, null()), else_=spec["schedule"])), status]
