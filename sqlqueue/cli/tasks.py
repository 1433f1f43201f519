"""The commands ``list``, ``show`` and ``why``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

import typer
from sqlalchemy import LargeBinary, Text
from sqlalchemy.orm import Session

from .. import operations
from .._support.errors import Claim
from .._support.texts import UNREADABLE, key_text, readable, states_text
from ..lifecycle.kind import Reason, moment_text
from ..model.companions import history_of, latches_of
from ..operations import AWAITED, Around, FlowNode, PastAttempt, around, attempt_text, reported, spoken
from ..operations.filtering import column, identity
from ..operations.paging import find_all, key_of
from ..queue.options import Status
from ..queue.spec import Identity, QueueSpec
from ..sql import NEVER, present
from ._options import AsJson, Filters, Queues, order
from ._output import GAP, facts, plain, print_json, print_record, print_table, report, room, say, width
from .batches import node_facts
from .statistics import Most

# -- the table of `sqlqueue list`: one line for each task -------------------------------------------------------------

Facts = Mapping[str, Any]
"""A task as ``sqlqueue list --json`` prints it."""
_ROLES = ("status", "topic", "task", "stage", "limit_key", "attempt", "available_at")
_TEXTS = ("arguments", "error")
"""The columns whose values are shortened where they do not fit."""
_LONGEST = 24
"""Maximum length of the application's values that are shown by default in a terminal."""


class _Column(NamedTuple):
    name: str
    is_role: bool = False

    @property
    def heading(self) -> str:
        if self.is_role and self.name == "task":
            return "function"
        return self.name.replace("_", " ") if self.is_role else self.name

    def value(self, task: Facts) -> object:
        """Return the value of ``task`` in this column; in a terminal only the first line of its error."""
        if not self.is_role:
            return task["columns"][self.name]
        if self.name == "attempt":
            return _attempt(task)
        found = task[self.name]
        if self.name == "error" and found and room() < sys.maxsize:
            line, _, rest = found.partition("\n")
            return f"{line}…" if rest else line
        return found

    def is_unreadable(self, tasks: Sequence[Facts]) -> bool:
        """Return whether a value has been replaced by the reason why it cannot be read, which is shortened."""
        return any(str(self.value(task)).startswith(f"({UNREADABLE}") for task in tasks)

    def width(self, tasks: Sequence[Facts]) -> int:
        return max(len(self.heading), *(width(plain(self.value(task), lines=False)) for task in tasks))


def _attempt(task: Facts) -> object:
    return attempt_text(task["attempt"], task["max_attempts"], task["status"])


def columns_of(spec: QueueSpec, names: str) -> list[_Column]:
    """Return the columns that ``--columns`` names, which are the model's attribute names."""
    return [_column(spec, name.strip()) for name in names.split(",")]


def print_tasks(spec: QueueSpec, tasks: Sequence[Facts], columns: Sequence[_Column] | None) -> None:
    """Print ``columns``; by default the queue's columns and as many of the model's own as fit."""
    if columns is None:
        queues, texts = (
            [_Column(role, is_role=True) for role in roles if role in spec.columns] for roles in (_ROLES, _TEXTS)
        )
        columns = [*queues, *_fitting(spec, tasks, [*queues, *texts]), *texts]
    rows = [[task["key"], *(each.value(task) for each in columns)] for task in tasks]
    shortened = [*_TEXTS, *(each.heading for each in columns if each.is_unreadable(tasks))]
    print_table(["Key", *(each.heading for each in columns)], rows, texts=shortened, one_line=True)


def _column(spec: QueueSpec, name: str) -> _Column:
    column(spec, name)
    role = next((role for role, attribute in spec.attributes.items() if attribute == name), None)
    return _Column(name) if role is None else _Column(role, is_role=True)


def _fitting(spec: QueueSpec, tasks: Sequence[Facts], others: Sequence[_Column]) -> Iterator[_Column]:
    """Yield the first of the model's own columns with short, non-empty values, as long as they fit.

    That is all of them if lines have any length, or if the other columns do not fit, so that each value gets a line.
    """
    left = room() - max(len(str(task["key"])) for task in tasks)
    left -= sum(GAP + min(each.width(tasks), _LONGEST if each.name in _TEXTS else sys.maxsize) for each in others)
    longest = _LONGEST
    if left < 0 or room() == sys.maxsize:
        left, longest = sys.maxsize, room() - _LONGEST
    for prop in spec.mapper.column_attrs:
        stored = prop.columns[0]
        if prop.key not in tasks[0]["columns"] or stored.primary_key or isinstance(stored.type, (LargeBinary, Text)):
            continue
        own = _Column(prop.key)
        needed = min(own.width(tasks), _LONGEST) if own.is_unreadable(tasks) else own.width(tasks)
        is_short = needed <= max(longest, len(own.heading))
        if is_short and GAP + needed <= left and any(own.value(task) not in (None, "") for task in tasks):
            left -= GAP + needed
            yield own


# -- the commands `sqlqueue list`, `sqlqueue show` and `sqlqueue why`: single tasks -----------------------------------

OrderBy = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Order by this column, -COLUMN for descending. Default: descending key."),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The task's primary key; if it is composite: 'line 1,7'.")]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAMES", help="Columns to show, separated by commas. Default: as many as fit."),
]


def list_tasks(
    queues: Queues,
    *,
    filters: Filters,
    order_by: OrderBy = None,
    limit: Most = 20,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """List tasks of a queue, by default in descending order of their primary keys.

        sqlqueue list --url postgresql+psycopg://me@host/shop shop.models:Email --status discarded --error '%timeout%'

    All filters must match. Ages use the database's clock. Each line shows a task's state, as many of the model's own
    columns as fit, and the first line of its error; if even the others do not fit, each value gets a line. sqlqueue
    show prints a whole task.

    With --json: an array of objects with queue (its table), key, the queue's columns by their documented names, and
    columns, an object of the model's own. available_at is null for a task that waits for others without a timeout.

    Exit status: 0, even without tasks; 2 for bad usage or a database that does not respond.
    """
    spec = queues.only
    chosen = filters.criteria(spec)
    filters.verify(queues, spec)
    terms = order(spec, order_by or ())
    wanted = None if columns is None else columns_of(spec, columns)
    found = queues.transact(
        lambda session: [
            _facts(spec, task) for task in find_all(session, spec.entity, *chosen, limit=limit, order_by=terms)
        ]
    )
    if as_json:
        print_json(found)
    elif found:
        print_tasks(spec, found, wanted)
    else:
        say(f"{spec.name} has no such tasks.")


def show(queues: Queues, key: Key, as_json: AsJson = False) -> None:
    """Show a whole task: its state, its lease, its last error, all columns of the model, what it waits for and what
    waits for it, and its finished attempts if the application has a HistoryMixin.

        sqlqueue show --url postgresql+psycopg://me@host/shop shop.models:Email 4711

    With --json: an object as in sqlqueue list; of a task in a batch or workflow also flow, an object of batch (its key,
    or null), when (completed, failed or final: until when it waits), before and after (arrays of nodes as in sqlqueue
    batch); and with a HistoryMixin its history, an array of objects with attempt, outcome, claimed_by, started_at,
    finished_at, error and traceback, the latest first. null if there is no such task.

    Exit status: 0, found or not; 2 for bad usage or a database that does not respond.
    """
    spec = queues.only
    task, flow, past, now = queues.transact(lambda session: _whole(session, spec, identity(spec, key)))
    if as_json:
        kept = {} if past is None else {"history": [asdict(each) for each in past]}
        placed = {} if flow is None else {"flow": _flow_facts(flow)}
        print_json(None if task is None else task | placed | kept)
    elif task is not None:
        own, told = task.pop("columns"), reported(task.get("progress"))
        if told is not None:
            task["progress"] = told.text
        task |= {"lease": _lease(task, now), "attempt": _attempt(task)}
        shown = {name: plain(each, lines=name == "error") for name, each in (task | own).items()}
        print_record(shown.items(), texts=["error"])
        if told is not None and told.notes:
            say(f"\nNotes ({told.dropped} older ones are not kept):" if told.dropped else "\nNotes:")
            for moment, text in told.notes:
                say(f"  {moment_text(moment)} {readable(text)}")
        if flow is not None:
            _print_flow(flow)
        _print_past(past or ())
    else:
        say(f"There is no {spec.name} {key}.")


def why(queues: Queues, key: Key, as_json: AsJson = False) -> None:
    """Explain why a task is not running, and what has to change before it can run.

        sqlqueue why --url postgresql+psycopg://me@host/shop shop.models:Email 4711

    Paused, not due, behind a limit or other tasks, locked, leased, finished: every state has an answer.

    With --json: an object with queue, key, status (null if there is no such task), at, and reasons, an array of
    objects with cause, text, since, until, by, holders, ahead and estimate (in seconds).

    Exit status: 0, found or not; 2 for bad usage or a database that does not respond.
    """
    spec = queues.only
    task = Claim(spec.entity, identity(spec, key), attempt=0)
    found = queues.transact(lambda session: operations.why(session, task))
    shown = {"queue": spec.name, "key": key_text(found.identity), **facts(found, "status", "at")}
    report(
        {**shown, "reasons": [_reason(reason) for reason in found.reasons]},
        f"{spec.name} {shown['key']}, {found.status or 'missing'}:",
        *(f"  - {readable(reason.text)}" for reason in found.reasons),
        as_json=as_json,
    )


def _reason(reason: Reason) -> dict[str, Any]:
    holders = [{"key": key_text(each.identity), "worker": each.worker, "since": each.since} for each in reason.holders]
    estimate = None if reason.estimate is None else reason.estimate.total_seconds()
    return {**asdict(reason), "cause": reason.cause.value, "holders": holders, "estimate": estimate}


def _whole(
    session: Session, spec: QueueSpec, key: Identity
) -> tuple[dict[str, Any] | None, Around | None, list[PastAttempt] | None, datetime]:
    """Return a task, its place in a workflow, the finished attempts at it if the application keeps them, and the
    database's time."""
    tasks = find_all(session, spec.entity, spec.key(key))
    now = present(session, spec)
    if not tasks:
        return None, None, None, now
    claim, has_history = Claim(spec.entity, key, attempt=0), history_of(spec.table.metadata) is not None
    flow = around(session, claim) if latches_of(spec) is not None else None
    return _facts(spec, tasks[0]), flow, operations.history(session, claim) if has_history else None, now


def _flow_facts(flow: Around) -> dict[str, Any]:
    nodes = {name: [node_facts(node) for node in getattr(flow, name)] for name in ("before", "after")}
    return {"batch": flow.batch, "when": flow.when, **nodes}


def _print_flow(flow: Around) -> None:
    if flow.batch is not None:
        say(f"\nBatch: {flow.batch}")
    before = [f"{AWAITED.get(flow.when or '', '')}{node.label}: {states_text(node.states)}" for node in flow.before]
    after = [f"{node.label}{_waits_text(node)}: {states_text(node.states)}" for node in flow.after]
    for heading, lines in (("Waits for, or has waited for", before), ("Waits for this task, or has waited", after)):
        if lines:
            say("\n  ".join([f"\n{heading}:", *lines]))


def _waits_text(node: FlowNode) -> str:
    """Return what a successor waits for, unless it is the success of the task."""
    awaited = AWAITED.get(node.when or "")
    return f" ({awaited}this task)" if awaited else ""


def _print_past(past: Sequence[PastAttempt]) -> None:
    for each in past:
        took = "" if each.took is None else f", after {spoken(each.took)}"
        by = "" if each.claimed_by is None else f" on {readable(each.claimed_by)}"
        reason = "" if each.error is None else f": {each.error.partition(chr(10))[0]}"
        say(f"\nAttempt {each.attempt} {readable(each.outcome)}{by} at {moment_text(each.finished_at)}{took}{reason}")
        for line in (each.traceback or "").splitlines():
            say(f"  {line}")


def _facts(spec: QueueSpec, task: object) -> dict[str, Any]:
    """Return all columns of ``task`` as ``--json`` prints them."""
    roles = set(spec.attributes.values())
    own = [prop.key for prop in spec.mapper.column_attrs if prop.key not in roles]
    return {
        "queue": spec.name,
        "key": key_text(key_of(spec, task)),
        **{role: _if_ever(getattr(task, name)) for role, name in spec.attributes.items()},
        "columns": {name: getattr(task, name) for name in own},
    }


def _if_ever(value: Any) -> Any:
    """Return a value of a column, or ``None`` for the time that stands for no time, as of a task that waits."""
    return None if isinstance(value, datetime) and value >= NEVER else value


def _lease(task: Facts, now: datetime) -> str:
    if task["status"] != Status.RUNNING:
        return "none"
    until = task["available_at"]
    if not isinstance(until, datetime):
        return str(until)
    left = timedelta(seconds=round((until - now).total_seconds()))
    return f"expires in {left}" if left > timedelta(0) else f"expired {-left} ago: the next claim takes it over"
