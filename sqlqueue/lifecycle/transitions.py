"""What changes of a task's state write, and the fence, which decides whether a claim is still its session's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Delete,
    Float,
    Integer,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
)
from sqlalchemy.orm import Session

from .._support.errors import Claim
from .._support.texts import error_group
from ..dialects.base import Adapter
from ..queue.options import Status
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql import (
    NEVER,
    REACTIVATED,
    Assignment,
    UniqueBy,
    all_attempts_after,
    enqueued_again,
    is_enqueued_again,
    is_final,
    is_held,
    is_held_by_worker,
    is_ready,
    is_waiting,
    leased,
    present_status,
    raised,
    remove,
    state,
    uncounted,
    utcnow,
    write,
)
from .kind import Proposed, assigned, kinds_of

# -- the fence: the columns and criteria that distinguish one claim of a row from any other ---------------------------


@dataclass(frozen=True, kw_only=True)
class Fence:
    """How claims that are being settled hold their rows: by a lease written to the row, or by its lock alone."""

    spec: QueueSpec
    locked_by: str | None = None
    """The claimer's name for claims that hold their rows by the lock alone (``lease=None``): they have written nothing
    yet.  Otherwise ``None``."""
    waits: bool = True
    """Whether settling waits for rows that others have locked; otherwise it skips them."""

    @property
    def attempt(self) -> ColumnElement[int]:
        """The number of the attempt that is being settled."""
        return self.spec["attempt"] if self.locked_by is None else raised(self.spec["attempt"])

    @property
    def fresh_budget(self) -> ColumnElement[int]:
        """The ``max_attempts`` with which the task has all its attempts again."""
        return all_attempts_after(self.spec, self.attempt)

    @property
    def runs_again(self) -> Criterion | None:
        """The criterion of tasks that were enqueued again while they ran; ``None`` if that cannot be."""
        return is_enqueued_again(self.spec) if self.locked_by is None else None

    def marks(self, claims: Sequence[Claim]) -> list[tuple[int, ...]]:
        """Return the values of :attr:`marked` in the rows while ``claims`` hold them."""
        if self.locked_by is None:
            return [(claim.attempt, claim.token) for claim in claims]
        return [(claim.attempt,) for claim in claims]

    @property
    def marked(self) -> tuple[ColumnElement[int], ...]:
        """The columns that distinguish a claim from others of the same row, which can have the same attempt number."""
        return (self.attempt, self.spec["claim_token"]) if self.locked_by is None else (self.attempt,)

    def unsettled(self, mine: Criterion) -> Criterion:
        """Restrict ``mine``, the criterion of rows with the claims' keys and marks, to rows that are still held."""
        if self.locked_by is None:
            return and_(mine, present_status(self.spec) == state(Status.RUNNING))
        return and_(mine, ~is_final(self.spec))

    def written(self) -> list[Assignment]:
        """Return the assignments that a claim with ``lease=None`` has not made yet."""
        return [] if self.locked_by is None else stamp(self.spec, self.locked_by)


def stamp(spec: QueueSpec, claimed_by: str) -> list[Assignment]:
    """Return the assignments of a claim's name, time and attempt number."""
    return [
        (spec["claimed_by"], literal(claimed_by, spec["claimed_by"].type)),
        (spec["claimed_at"], utcnow()),
        (spec["attempt"], raised(spec["attempt"])),
    ]


# -- writes settlements: one fenced statement for claims that hold their rows in the same way -------------------------

ATTEMPT = "sqlqueue_attempt"
TOKEN = "sqlqueue_token"
_MARKS = (ATTEMPT, TOKEN)
"""The parameters for :attr:`.Fence.marked` if its values are the same for all claims."""


@dataclass(frozen=True, eq=False)
class FencedClaims:
    """Claims that hold their rows in the same way, and the session that settles them."""

    adapter: Adapter
    session: Session
    fence: Fence
    claims: Sequence[Claim]

    def of(self, claims: Sequence[Claim]) -> FencedClaims:
        """Return a copy with only ``claims``, a subset of these."""
        return FencedClaims(self.adapter, self.session, self.fence, claims)

    def update(
        self,
        assignments: Callable[[], Sequence[Assignment]] | None,
        *,
        key: Hashable = None,
        only: Criterion | None = None,
    ) -> set[Identity]:
        """Write to the rows that the claims still hold, or delete them if ``assignments`` is ``None``; return their
        primary keys.

        ``key``: under which the statement is cached; it contains everything that ``assignments`` and ``only`` depend on
        besides how the rows are held.  ``None``: not cached.  ``only``: an additional criterion.
        """
        if not self.claims:
            return set()
        fence, spec, rows = self.fence, self.fence.spec, self.adapter.rows
        identities, marks = [claim.identity for claim in self.claims], fence.marks(self.claims)
        are_alike = len(set(marks)) == 1
        parameters = None
        if key is None or not (are_alike or rows.names_rows):
            statement = self._statement(assignments, only)
        else:
            count = rows.statement_size(spec, len(self.claims))
            statement = spec.made.get(
                (self.adapter, fence, key, count, are_alike), lambda: self._statement(assignments, only, count)
            )
            parameters = dict(rows.key_parameters(spec, identities))
            if are_alike:
                parameters.update(zip(_MARKS, marks[0], strict=False))
            else:
                parameters.update(rows.row_parameters(spec, _rows(identities, marks)))
        return rows.change(self.session, spec, statement, identities, parameters, waits=fence.waits)

    def write(self, assignments: Sequence[Assignment]) -> set[Identity]:
        """Call :meth:`update` with a statement that is not cached."""
        return self.update(lambda: assignments)

    def _statement(
        self,
        assignments: Callable[[], Sequence[Assignment]] | None,
        only: Criterion | None,
        count: int | None = None,
    ) -> Update | Delete:
        spec, mine = self.fence.spec, self.criterion(count)
        if not self.fence.waits:
            mine = self.adapter.rows.skip_locked_rows(spec, mine)
        if only is not None:
            mine = and_(mine, only)
        return remove(spec, mine) if assignments is None else write(spec, mine, assignments())

    def criterion(self, count: int | None = None) -> Criterion:
        """Return the criterion of the rows that these claims still hold.

        ``count``: the number of keys, which are then parameters, as the marks are.
        """
        fence, spec, rows, marks = self.fence, self.fence.spec, self.adapter.rows, self.fence.marks(self.claims)
        identities = [claim.identity for claim in self.claims]
        keys = rows.key_in(spec, identities) if count is None else rows.key_in_parameters(spec, count)
        if len(set(marks)) == 1:
            named = zip(fence.marked, _MARKS, strict=False)
            parameters = (bindparam(name, type_=column.type) for column, name in named)
            values = marks[0] if count is None else parameters
            return fence.unsettled(
                and_(*(column == value for column, value in zip(fence.marked, values, strict=True)), keys)
            )
        # also the keys alone, so that an index finds the rows
        columns, listed = (*spec.primary_key, *fence.marked), _rows(identities, marks) if count is None else None
        return fence.unsettled(and_(keys, rows.rows_in(spec, columns, listed)))


def _rows(identities: Sequence[Identity], marks: Sequence[tuple[int, ...]]) -> list[Identity]:
    return [(*identity, *mark) for identity, mark in zip(identities, marks, strict=True)]


# -- state transitions: the assignments of claims and of settling -----------------------------------------------------
#
# MySQL and MariaDB evaluate assignments from left to right, and each sees the results of those before it; by the SQL
# standard, all see the old row.  Therefore, columns that other assignments read (``max_attempts``, ``attempt``,
# ``status``) are assigned after them.

NONE: ColumnElement[int] = literal_column("0", Integer)
"""The ``crashes`` of a task that is not a suspect."""


def claim_assignments(
    spec: QueueSpec, claimed_by: str, lease: timedelta, token: int | None = None
) -> tuple[Assignment, ...]:
    """Return the assignments of a claim with a lease.  The token is the parameter ``TOKEN`` if not given here."""
    column = spec["claim_token"]
    return (
        *planned_run(spec),
        *takeover_assignments(spec),
        (spec["status"], state(Status.RUNNING)),
        leased(spec, lease),
        (column, bindparam(TOKEN, type_=column.type) if token is None else literal(token, column.type)),
        *stamp(spec, claimed_by),
    )


def takeover_assignments(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments of a claim to tasks that another worker held until their lease expired.

    That worker has most likely crashed.  The crash does not count as an attempt, because the task may not even have
    been started, but it makes the task a suspect.
    """
    if not spec.holds_tasks:
        return []
    crashed, crashes, budget = is_held_by_worker(spec), spec["crashes"], spec["max_attempts"]
    return [
        (budget, case((crashed, uncounted(spec)), else_=budget)),
        (crashes, case((and_(crashed, crashes == NONE), literal_column("1")), else_=crashes)),
    ]


def suspect_crashes(spec: QueueSpec) -> ColumnElement[int]:
    """Return the ``crashes`` of a task whose process has crashed: already counted if it was a suspect before."""
    crashes = spec["crashes"]
    return case((crashes == NONE, literal_column("1", Integer)), else_=crashes)


def clear_crashes(spec: QueueSpec, some: Criterion | None = None) -> Assignment:
    """Return the assignment that clears the suspicion of tasks whose attempt has ended, or of ``some`` of them."""
    return spec["crashes"], NONE if some is None else case((some, NONE), else_=spec["crashes"])


def consume_assignments(spec: QueueSpec, claimed_by: str) -> tuple[Assignment, ...]:
    """Return the assignments of a claim that completes the task at once."""
    column = spec["claim_token"]
    return (
        *end_assignments(spec, Status.COMPLETED),
        (column, bindparam(TOKEN, type_=column.type)),
        *stamp(spec, claimed_by),
    )


def planned_run(spec: QueueSpec) -> list[Assignment]:
    """Return the assignment of a claim that stores the planned time of a recurring task's run.

    ``available_at`` changes to the end of the lease or the time of a retry.
    """
    if not spec.recurs:
        return []
    return [(spec["scheduled_for"], func.coalesce(spec["scheduled_for"], spec["available_at"]))]


def _planned_now(fence: Fence) -> list[Assignment]:
    """Return :func:`planned_run` of a claim with ``lease=None``, which has not written it yet."""
    return [] if fence.locked_by is None else planned_run(fence.spec)


def tries(fence: Fence) -> ColumnElement[int]:
    """Return the number of attempts in the task's current stage or run."""
    before = fence.spec.columns.get("attempts_before")
    return fence.attempt if before is None else fence.attempt - before


def lives_on(fence: Fence, status: Status, stage: str | None = None) -> Criterion | None:
    """Return the criterion of tasks that continue instead of ending as ``status``; ``None`` if none does.

    A task continues if it was enqueued again while it ran, or moves to the next stage, or to ``stage``.
    """
    spec = fence.spec
    if status is Status.CANCELLED:
        return None
    if stage is not None:
        return spec["stage"].is_not(None)  # always true, in a form that every engine accepts in a CASE
    ways = [] if fence.runs_again is None else [fence.runs_again]
    if status is Status.COMPLETED and len(spec.options.stages) > 1:
        ways.append(spec["stage"].in_(list(next_stages(spec))))
    return or_(*ways) if ways else None


def next_stages(spec: QueueSpec) -> dict[str, str]:
    """Map each stage to the next one; the last stage is not a key."""
    return dict(pairwise(spec.options.stages))


def _moved(fence: Fence, lives: Criterion, stage: str | None, *, failed: bool) -> list[Assignment]:
    """Return the assignments that move tasks that continue, which satisfy ``lives``, to the given or the next stage.

    A task that was enqueued again while it ran is already at the stage where its next run starts.
    """
    spec, again = fence.spec, fence.runs_again
    if not spec.has_stages:
        return []
    on: ColumnElement[str] = spec["stage"]
    if stage is not None:
        on = literal(stage, spec["stage"].type)
    elif len(spec.options.stages) > 1:
        # with the column's type: a plain string literal would lose characters on SQL Server
        moves = ([literal(each, on.type) for each in move] for move in next_stages(spec).items())
        on = case(*((before, after) for before, after in moves), value=on, else_=on)
    stays = [] if again is None else [(again, spec["stage"])]
    forgotten = [(spec[role], case((lives, null()), else_=spec[role])) for role in ("error", "error_group")]
    return [
        *(() if failed else forgotten),
        (spec["attempts_before"], case((lives, fence.attempt), else_=spec["attempts_before"])),
        (spec["stage"], case(*stays, (lives, on), else_=spec["stage"])),
    ]


def forgotten_steps(spec: QueueSpec, some: Criterion | None = None) -> list[Assignment]:
    """Return the assignment with which tasks, or ``some`` of them, begin anew without the steps that have run."""
    if not spec.has_steps:
        return []
    return [(spec["steps"], null() if some is None else case((some, null()), else_=spec["steps"]))]


def freed_key(spec: QueueSpec, final: Criterion | None = None) -> list[Assignment]:
    """Return the assignments that free the unique keys of tasks that become final: of all, or of those that satisfy
    ``final``.  The key is stored as the former key."""
    if not spec.has_unique_keys:
        return []
    key, former = spec["unique_key"], spec["former_key"]
    kept = func.coalesce(key, former)
    if final is None:
        return [(former, kept), (key, null())]
    return [(former, case((final, kept), else_=former)), (key, case((final, null()), else_=key))]


def reactivated(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments that restore the unique keys that tasks lost when they became final, and mark those that
    come before later ones of their keys again."""
    values: list[Assignment] = []
    if spec.has_unique_keys:
        key, former = spec["unique_key"], spec["former_key"]
        values += [(key, func.coalesce(key, former)), (former, null())]
    if spec.sequence is not None:
        token = spec["claim_token"]
        values.append((token, case((is_final(spec), literal_column(str(REACTIVATED))), else_=token)))
    return values


def end_assignments(spec: QueueSpec, status: Status) -> list[Assignment]:
    """Return the assignments that make a task final, whatever its state.

    A dead letter keeps its number of crashes.
    """
    return [
        *freed_key(spec),
        *([] if status is Status.DISCARDED else [clear_crashes(spec)]),
        (spec["status"], state(status)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], utcnow()),
    ]


def error_assignments(spec: QueueSpec, error: str | None) -> list[Assignment]:
    """Return the assignments of a task's last error and its group, or of none."""
    if error is None:
        return [(spec["error"], null()), (spec["error_group"], null())]
    return [(spec["error"], error), (spec["error_group"], error_group(error))]


def finish_assignments(
    fence: Fence, status: Status, *, stage: str | None = None, error: str | None = None
) -> list[Assignment]:
    """Return the assignments that make a held task final, or available with all attempts if it continues.

    A task continues if it was enqueued again while it ran, or moves to another stage.
    """
    spec, lives = fence.spec, lives_on(fence, status, stage)
    reason = [] if error is None else error_assignments(spec, error)
    if lives is None:
        return [*end_assignments(spec, status), *reason, *fence.written()]
    return [
        *freed_key(spec, ~lives),
        (spec["status"], case((lives, state(Status.AVAILABLE)), else_=state(status))),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        (spec["max_attempts"], case((lives, fence.fresh_budget), else_=spec["max_attempts"])),
        clear_crashes(spec) if status is not Status.DISCARDED else clear_crashes(spec, lives),
        *reason,
        *forgotten_steps(spec, lives),
        *_moved(fence, lives, stage, failed=error is not None),
        *fence.written(),
    ]


def fail_assignments(fence: Fence, delays: Mapping[int, timedelta]) -> list[Assignment]:
    """Return the assignments of a failure: retryable after its attempt's delay, or discarded if no attempt is left."""
    spec, again = fence.spec, fence.runs_again
    more = fence.attempt < spec["max_attempts"]
    seconds = {attempt: _seconds(delay) for attempt, delay in delays.items()}
    *_, longest = seconds.values()
    delay = longest if len(seconds) == 1 else case(seconds, value=tries(fence), else_=longest)
    fresh = [] if again is None else [(again, state(Status.AVAILABLE))]
    lives = more if again is None else or_(more, again)
    return [
        *_planned_now(fence),
        *freed_key(spec, ~lives),
        clear_crashes(spec),
        (spec["status"], case((more, state(Status.RETRYABLE)), *fresh, else_=state(Status.DISCARDED))),
        (spec["available_at"], case((more, utcnow(delay)), else_=utcnow())),
        (spec["finished_at"], case((lives, null()), else_=utcnow())),
        *_restarting(fence, spec["max_attempts"]),
        *fence.written(),
    ]


def _restarting(fence: Fence, budget: ColumnElement[int]) -> list[Assignment]:
    """Give all attempts to tasks that were enqueued again while they ran; set ``max_attempts`` of others to
    ``budget``."""
    spec, again = fence.spec, fence.runs_again
    if again is None:
        return []
    values: list[Assignment] = [(spec["max_attempts"], case((again, fence.fresh_budget), else_=budget))]
    before = spec.columns.get("attempts_before")
    if before is not None:
        values.append((before, case((again, fence.attempt), else_=before)))
    return [*values, *forgotten_steps(spec, again)]


def release_assignments(fence: Fence, delay: timedelta | None) -> list[Assignment]:
    """Return the assignments of a release: available now or scheduled after ``delay``; the attempt does not count."""
    status = Status.AVAILABLE if delay is None else Status.SCHEDULED
    return _unsettled(fence, state(status), utcnow(delay), NONE)


def wait_assignments(fence: Fence, latch: str, is_open: Criterion, within: timedelta | None) -> list[Assignment]:
    """Return the assignments of a release until a latch opens, or until its deadline; the attempt does not count.

    ``is_open``: whether the latch is open already, so that the task is available now.
    """
    spec = fence.spec
    deadline = literal(NEVER, spec["available_at"].type) if within is None else utcnow(within)
    return [
        *_unsettled(
            fence,
            case((is_open, state(Status.AVAILABLE)), else_=state(Status.WAITING)),
            case((is_open, utcnow()), else_=deadline),
            NONE,
        ),
        (spec["waits_for"], latch),
        (spec["waits_when"], literal("final", spec["waits_when"].type)),
    ]


def return_assignments(fence: Fence, crashes: ColumnElement[int]) -> list[Assignment]:
    """Return the assignments of a worker's release: the attempt does not count, and the task is claimed before others.

    The task was claimed before those that are waiting, and must not wait behind them again.  The claim has overwritten
    the original ``available_at``; the task's creation replaces it, which is never later.
    """
    return _unsettled(fence, state(Status.AVAILABLE), _before_others(fence.spec), crashes)


def expire_assignments(fence: Fence) -> list[Assignment]:
    """Return the assignments that release tasks whose lease has expired, see :func:`takeover_assignments` and
    :func:`return_assignments`."""
    spec = fence.spec
    (_, budget), suspect = takeover_assignments(spec)
    return [
        *_restarting(fence, budget),
        suspect,
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], _before_others(spec)),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def _before_others(spec: QueueSpec) -> ColumnElement[datetime]:
    created, now = spec["created_at"], utcnow()
    return case((created < now, created), else_=now)


def _unsettled(
    fence: Fence, status: ColumnElement[str], moment: ColumnElement[datetime], crashes: ColumnElement[int]
) -> list[Assignment]:
    spec = fence.spec
    back: list[Assignment] = [
        *_planned_now(fence),
        (spec["crashes"], crashes),
        (spec["status"], status),
        (spec["available_at"], moment),
    ]
    if fence.locked_by is not None:
        return [*back, (spec["max_attempts"], uncounted(spec)), *fence.written()]
    return [
        *back,
        *_restarting(fence, uncounted(spec)),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]


def _seconds(delay: timedelta) -> ColumnElement[float]:
    return bindparam(None, delay.total_seconds(), type_=Float(53))


# -- assignments that reactivate an existing row: for an insert of the same key, and for a retry by an operator -------


def replace_assignments(spec: QueueSpec, given: Iterable[str], proposed: Proposed, *, rerun: bool) -> list[Assignment]:
    """Return the assignments to an existing row that an insert conflicts with: columns ``given``, and reactivation.

    A running row continues its run; ``rerun`` clears its ``claimed_at``, which makes completion run it again.
    """
    names = set(given)
    own = ("status", "available_at", "max_attempts", "stage")
    queue = {spec[role].name for role in own if role in spec.columns}
    running, moves = is_held(spec), spec["available_at"].name in names
    # an available task keeps its position, unless the insert sets it
    stays = or_(running, is_ready(spec)) if rerun and not moves else running
    if spec.has_latches:
        stays = or_(stays, is_waiting(spec))  # until what it waits for has ended
    moment = proposed(spec["available_at"].name) if moves else utcnow()
    status = proposed(spec["status"].name) if spec["status"].name in names else state(Status.AVAILABLE)
    budget = spec["max_attempts"].name
    attempts = spec["attempt"] + proposed(budget) if budget in names else all_attempts_after(spec, spec["attempt"])
    marked = [enqueued_again(spec, running)] if rerun else []
    values = overwrite_assignments(spec, {spec.table.c[name]: proposed(name) for name in sorted(names - queue)})
    restarted = [
        *reactivated(spec),
        clear_crashes(spec, ~running),
        *assigned(kind.restarted(spec, running) for kind in kinds_of(spec)),
    ]
    placed: list[Assignment] = []
    if spec.has_stages:
        stage = spec["stage"]
        first = proposed(stage.name) if stage.name in names else literal(spec.options.stages[0], stage.type)
        # to run again, at once even if the task is running: however this run ends, the next one starts there
        placed = [(stage, first if rerun else case((running, stage), else_=first))]
    return [
        *values,
        *marked,
        (spec["available_at"], case((stays, spec["available_at"]), else_=moment)),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((running, spec["max_attempts"]), else_=attempts)),
        *((column, value) for column, value in restarted if column.name not in names),
        *placed,
        (spec["status"], case((stays, spec["status"]), else_=status)),
    ]


def is_newer(version: Column[Any], proposed: Proposed) -> Criterion:
    """Return the criterion of rows with a lesser ``version`` than the one that an insert proposes, or none."""
    return or_(version.is_(None), proposed(version.name) > version)


def guarded(assignments: Iterable[Assignment], version: Column[Any], proposed: Proposed) -> list[Assignment]:
    """Return the ``assignments`` of an upsert, which change nothing unless the row :func:`is_newer`."""
    newer = is_newer(version, proposed)
    values = [(column, case((newer, value), else_=column)) for column, value in assignments if column is not version]
    return [*values, (version, case((newer, proposed(version.name)), else_=version))]


def overwrite_assignments(spec: QueueSpec, values: Mapping[Column[Any], Any]) -> list[Assignment]:
    """Return assignments of ``values`` to existing rows, guarded where a row cannot take them in its current state.

    The key of a running task stays: the task holds one of its slots, and those that follow it in order wait for it.
    """
    given = dict(values)
    for key in (spec.columns.get("limit_key"), spec.sequence):
        if key is not None and key in given:
            given[key] = case((is_held(spec), key), else_=given[key])
    return list(given.items())


def retry_assignments(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments of :func:`.retry`: available now, with all attempts, and with its former key."""
    budget = all_attempts_after(spec, spec["attempt"])
    return [
        *reactivated(spec),
        *assigned(kind.redriven(spec) for kind in kinds_of(spec)),
        clear_crashes(spec),
        (spec["status"], state(Status.AVAILABLE)),
        (spec["available_at"], utcnow()),
        (spec["finished_at"], null()),
        (spec["max_attempts"], case((spec["max_attempts"] > budget, spec["max_attempts"]), else_=budget)),
    ]


def revive_assignments(spec: QueueSpec) -> list[Assignment]:
    """Return the assignments that let tasks wait again that were cancelled because of the end of others."""
    when, moment = spec["waits_when"], spec["available_at"]
    return [
        *reactivated(spec),
        (when, case((when == "skipped", literal("failed", when.type)), else_=when)),
        (spec["status"], state(Status.WAITING)),
        (moment, literal(NEVER, moment.type)),
        (spec["finished_at"], null()),
        *error_assignments(spec, None),
    ]


def unique_by(spec: QueueSpec, row: Mapping[str, Any]) -> tuple[UniqueBy, ...]:
    """Return the keys that ``row`` may conflict on: the primary key and the unique key, as far as it sets them."""
    primary, *unique = _unique_keys(spec)
    ways = [primary] if all(column.name in row for column in spec.primary_key) else []
    return (*ways, *(by for by in unique if row.get(by.columns[0].name) is not None))


@cache
def _unique_keys(spec: QueueSpec) -> list[UniqueBy]:
    key = spec.columns.get("unique_key")
    return [UniqueBy(spec.primary_key), *([] if key is None else [UniqueBy((key,), key.is_not(None))])]
