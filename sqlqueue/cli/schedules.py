"""The command ``schedules``: recurring tasks, when they run, and changes of single ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.texts import key_text
from ..diagnostics.check import SCHEDULES_READ
from ..operations import Pause, RecurringTask
from ..queue.options import Status
from ..queue.spec import QueueSpec
from ._options import AsJson, Queues, choice, names_of
from ._output import facts, print_json, print_table, refusal, report, say

ScheduleAction: TypeAlias = Literal["run-now", "stop", "reschedule"]
Do = Annotated[
    ScheduleAction | None,
    typer.Argument(metavar="ACTION", parser=choice(get_args(ScheduleAction)), help="run-now, stop or reschedule."),
]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The task's unique_key, or its primary key.")]
Plan = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="TEXT",
        help="With reschedule: the new schedule, such as PT15M or '0 3 * * mon-fri Europe/Berlin'."
        " Default: the one that it has.",
    ),
]
Exact = Annotated[bool, typer.Option("--exact", help="Read all rows, however many there are.")]


class _Found(NamedTuple):
    spec: QueueSpec
    task: RecurringTask
    is_paused: bool

    @property
    def name(self) -> str:
        return self.task.unique_key or key_text(self.task.identity)

    @property
    def state(self) -> str:
        if self.task.has_ended:
            return f"stopped ({self.task.status})"
        return "paused" if self.is_paused and self.task.status != Status.RUNNING else str(self.task.status)


def schedules(
    queues: Queues,
    *,
    action: Do = None,
    name: Name = None,
    schedule: Plan = None,
    exact: Exact = False,
    as_json: AsJson = False,
) -> None:
    """Show the recurring tasks: their functions and schedules, when they ran last and run next; or change one of them.

        sqlqueue schedules --url postgresql+psycopg://me@host/shop shop.models:Base
        sqlqueue schedules --url postgresql+psycopg://me@host/shop shop.models:Base stop nightly-report

    The last run is the start of the last attempt. The next run is shown in UTC and in the time zone of the schedule;
    for a task that waits for a retry, it is the retry. A stopped task has no next run. Tasks without a schedule are
    left out. The first 10,000 rows of each queue are read, the lowest primary keys first; --exact reads all.

    run-now: run a waiting task now; its next run follows this one. stop: no further runs; a run in progress ends as
    usual. reschedule: give a task the schedule of --schedule, or restart a stopped one on the schedule that it has.

    With --json: an array of objects with queue (its table), key, unique_key, function, topic, schedule, timezone,
    status, stopped, paused, last_run, next_runs (up to three) and error (of the last run, if that failed). With an
    action: one such object, and changed, which is false if the task was in no state to be changed.

    Exit status: 0, changed or not; 2 for bad usage, queues without schedules, no such task, or a database that does not
    respond.
    """
    specs = queues.which(lambda spec: spec.recurs, "the queues have no schedules: derive {} from RecurringMixin")
    if schedule is not None and action != "reschedule":
        raise refusal("--schedule is for reschedule")
    first = None if exact else SCHEDULES_READ
    if action is not None:
        _change_one(queues, specs, action, name, schedule=schedule, first=first, as_json=as_json)
        return
    if name is not None:
        raise refusal(f"{name!r}: give an action and the name of a task")
    found, cut = queues.transact(lambda session: _read(session, specs, first), *specs)
    if as_json:
        print_json([_facts(each) for each in found])
    elif found:
        _show(found, several=len(specs) > 1)
    else:
        say(f"No task of {names_of(specs)} has a schedule.")
    if cut and not as_json:
        say(f"Only the first {SCHEDULES_READ:,} rows of {', '.join(cut)} were read. --exact reads all.")


def _read(session: Session, specs: Sequence[QueueSpec], first: int | None) -> tuple[list[_Found], list[str]]:
    """Return recurring tasks, and the queues that may have more."""
    every: list[_Found] = []
    cut: list[str] = []
    for spec in specs:
        found, is_cut = operations.recurring_tasks(session, spec.entity, first=first)
        pauses = operations.paused(session, spec.entity)
        every += [_Found(spec, task, _is_paused(task, pauses)) for task in found]
        cut += [spec.name] if is_cut else []
    return every, cut


def _is_paused(task: RecurringTask, pauses: Sequence[Pause]) -> bool:
    return any(pause.topic in (None, task.topic) for pause in pauses)


def _show(found: Sequence[_Found], *, several: bool) -> None:
    headings = ["Name", "queue", "function", "schedule", "state", "last run", "next run", "in its zone", "error"]
    rows = [_row(each) for each in found]
    present = [place for place in range(len(headings)) if place != 1 or several]
    present = [place for place in present if place in (0, 3) or any(row[place] for row in rows)]
    shown = [[row[place] for place in present] for row in rows]
    print_table([headings[place] for place in present], shown, texts=["error"], one_line=True)


def _row(found: _Found) -> list[object]:
    task = found.task
    following = next(iter(task.next_runs), None)
    error = operations.brief(task.error or "")
    times = [task.last_run, following, _local(task, following)]
    return [found.name, found.spec.name, task.function, task.schedule, found.state, *times, error]


def _local(task: RecurringTask, moment: datetime | None) -> str | None:
    return None if moment is None or task.zone is UTC else f"{moment.astimezone(task.zone):%Y-%m-%d %H:%M:%S %Z}"


def _facts(found: _Found) -> dict[str, Any]:
    task = found.task
    return {
        "queue": found.spec.name,
        "key": key_text(task.identity),
        **facts(task, "unique_key", "function", "topic", "schedule"),
        "timezone": str(task.zone),
        "status": task.status,
        "stopped": task.has_ended,
        "paused": found.is_paused,
        **facts(task, "last_run", "next_runs", "error"),
    }


def _change_one(
    queues: Queues,
    specs: Sequence[QueueSpec],
    action: ScheduleAction,
    name: str | None,
    *,
    schedule: str | None,
    first: int | None,
    as_json: bool,
) -> None:
    if name is None:
        raise refusal(f"{action}: name the task, as sqlqueue schedules shows it")

    changes: dict[ScheduleAction, tuple[Callable[..., int], str]] = {
        "run-now": (operations.run_now, "runs now"),
        "stop": (operations.unschedule, "stopped"),
        "reschedule": (partial(operations.reschedule, schedule=schedule), "rescheduled"),
    }
    work, told = changes[action]

    def change(session: Session) -> tuple[int, _Found]:
        spec, task, _ = _named(_read(session, specs, first)[0], name)
        chosen = spec.key(task.identity)
        changed = work(session, spec.entity, chosen)
        found, _ = operations.recurring_tasks(session, spec.entity, chosen)
        pauses = operations.paused(session, spec.entity)
        (after,) = found or [task]  # a running task loses its schedule
        return changed, _Found(spec, after, _is_paused(after, pauses))

    changed, after = queues.transact(change, *specs)
    done = told if changed else f"nothing to do: it is {after.state}"
    report({**_facts(after), "changed": bool(changed)}, f"{after.spec.name} {after.name}: {done}.", as_json=as_json)


def _named(found: Sequence[_Found], name: str) -> _Found:
    chosen = [each for each in found if each.task.unique_key == name]
    chosen = chosen or [each for each in found if key_text(each.task.identity) == name]
    if not chosen:
        raise refusal(f"no task with a schedule is called {name}: see sqlqueue schedules")
    if len(chosen) > 1:
        places = ", ".join(f"{each.spec.name} {key_text(each.task.identity)}" for each in chosen)
        raise refusal(f"several tasks are called {name} ({places}): use --queue, or the primary key")
    return chosen[0]
