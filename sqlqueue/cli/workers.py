"""The command ``sqlqueue workers``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.checks import MOST_AT_ONCE
from ..operations import WorkerInfo
from ..operations.registry import check_registered
from ._database import refusals, transact
from ._output import AsJson, Yes, confirm, print_json, print_table, refusal, say
from ._target import Target, Url, load


class WorkerCommand(StrEnum):
    """A command that ``sqlqueue workers`` sends to workers."""

    DRAIN = "drain"
    STOP = "stop"
    SET_CONCURRENCY = "set-concurrency"


Do = Annotated[WorkerCommand | None, typer.Argument(metavar="[ACTION]", help="drain, stop or set-concurrency.")]
Number = Annotated[
    int | None,
    typer.Argument(
        metavar="[N]", min=1, max=MOST_AT_ONCE, help="With set-concurrency: the number of concurrent calls."
    ),
]
Name = Annotated[str | None, typer.Option("--worker", "-w", metavar="NAME", help="Only this worker, by name or id.")]


def workers(
    target: Target,
    action: Do = None,
    number: Number = None,
    *,
    url: Url,
    worker: Name = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the running workers, and the queues that none of them serves; or send workers a command.

        sqlqueue workers --url postgresql+psycopg://me@host/shop shop.models:Base
        sqlqueue workers --url postgresql+psycopg://me@host/shop shop.models:Base drain --worker web-1:211

    Workers are registered in the table of a model that derives from WorkerMixin, which the application must have. A
    worker that has not reported for 35 seconds is dead: it was killed, or cannot reach the database.

    drain: stop claiming, finish running tasks however long they take, and exit. stop: exit as on SIGTERM, with the
    worker's grace period. Processes that end are not replaced by sqlqueue work. set-concurrency N: run N calls of each
    handler at a time; without N, as many as it was registered with. Workers respond within ten seconds.

    With --json: an object of workers and unserved, an array of tables; after a command also told, the number of workers
    that it was sent to. Each worker has id, name, host, process, live, started_at, seen_at, version, slots, busy, idle,
    last_claim_at, memory (bytes), command, concurrency and handlers: an array of queue, functions, whole, slots and
    busy.

    Exit status: 0; 1 if you answer no; 2 for bad usage, no such model or worker, a database that does not respond, or a
    missing --yes without a terminal.
    """
    with refusals("workers"):
        base = load(target)
        if number is not None and action is not WorkerCommand.SET_CONCURRENCY:
            raise refusal("a number is allowed only with set-concurrency")
        check_registered(base)
        if action is WorkerCommand.DRAIN or action is WorkerCommand.STOP:
            confirm(f"{action.value} {worker or 'all workers'}", yes=yes)
        told = None if action is None else transact(url, lambda session: _tell(session, base, action, number, worker))
        if told == 0 and worker is not None:
            raise refusal(f"no live worker is called {worker}")
        found, unserved = transact(url, lambda s: (operations.workers(s, base), operations.unserved(s, base)))
    tables = [model.__queue_spec__.table.fullname for model in unserved]
    if as_json:
        facts = {"workers": [_facts(each) for each in found], "unserved": tables}
        print_json(facts if told is None else {**facts, "told": told})
    else:
        _show(found, tables, told)


def _tell(session: Session, base: Any, action: WorkerCommand, number: int | None, worker: str | None) -> int:
    match action:
        case WorkerCommand.DRAIN:
            return operations.drain_workers(session, base, worker)
        case WorkerCommand.STOP:
            return operations.stop_workers(session, base, worker)
        case WorkerCommand.SET_CONCURRENCY:
            return operations.set_concurrency(session, base, number, worker)


def _show(found: list[WorkerInfo], unserved: list[str], told: int | None) -> None:
    if told is not None:
        say(f"The command was sent to {told} worker{'s' * (told != 1)}.")
    if found:
        headings = ["Worker", "busy", "slots", "MiB", "state", "seen", "started", "version", "serves"]
        print_table(headings, [_line(each) for each in found], numbers=3)
    else:
        say("No worker is registered.")
    for table in unserved:
        say(f"No live worker serves {table}.")


def _line(each: WorkerInfo) -> list[object]:
    memory = None if each.memory is None else each.memory // 2**20
    serves = ", ".join(dict.fromkeys(handler.queue for handler in each.handlers))
    return [each.name, each.busy, each.slots, memory, _state(each), each.seen_at, each.started_at, each.version, serves]


def _state(each: WorkerInfo) -> str:
    if not each.is_live:
        return "dead"
    return "live" if each.command is None else f"{each.command.value} requested"


def _facts(each: WorkerInfo) -> dict[str, object]:
    names = ("id", "name", "host", "process", "started_at", "seen_at", "version", "slots", "busy", "idle")
    handlers = ("queue", "functions", "whole", "slots", "busy")
    return {
        **{name: getattr(each, name) for name in names},
        "live": each.is_live,
        "last_claim_at": each.last_claim_at,
        "memory": each.memory,
        "command": None if each.command is None else each.command.value,
        "concurrency": each.concurrency,
        "handlers": [{name: getattr(handler, name) for name in handlers} for handler in each.handlers],
    }
