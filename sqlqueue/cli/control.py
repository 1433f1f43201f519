"""The commands that show and control queues and workers: limits, pauses, workers."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, get_args

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.checks import MOST_AT_ONCE
from .._support.errors import ArgumentError
from .._support.texts import ascii_text, host_name, key_text, readable
from ..lifecycle.kind import moment_text
from ..model.declaration import LONGEST_NAME
from ..operations import KeyState, Limit, Pause, WorkerInfo, check_registered
from ..operations.filtering import value
from ..queue.options import MOST_STARTS, Rate
from ..queue.spec import QueueSpec
from ..sql import COUNTED
from ._database import transact
from ._options import AsJson, Queues, Target, Url, Yes, choice, duration, load, names_of
from ._output import complain, confirm, facts, pauses, plain, print_json, print_table, refusal, report, say

# -- the commands `sqlqueue limits`, `sqlqueue set-limit` and `sqlqueue set-rate` -------------------------------------

Key = Annotated[str, typer.Argument(metavar="KEY", help="The limit_key of the tasks.")]
Places = Annotated[
    int | None,
    typer.Argument(
        metavar="N", min=0, max=MOST_AT_ONCE, help="How many of them may run at once, at most 10,000; 0 stops the key."
    ),
]
Unlimited = Annotated[bool, typer.Option("--none", help="Remove it: any number.")]
Starts = Annotated[
    int | None, typer.Argument(metavar="N", min=1, max=MOST_STARTS, help="How many of them may start within the time.")
]
Per = Annotated[timedelta | None, duration(text="The time: 1s, 1m, 2h30m.")]


def limits(queues: Queues, *, as_json: AsJson = False) -> None:
    """Show the limit of each key in use: how many of its tasks may run at once, and how many do. If keys have rates,
    also how many have started within the time of their rate, how many may, and when the next may.

        sqlqueue limits --url postgresql+psycopg://me@host/shop shop.models:Base

    After a limit has been lowered, more tasks may be running than it allows: no more tasks with that key are claimed
    until enough of them have ended.

    With --json: an array of objects with queue (its table), key, limit and running (null without a limit), starts and
    per (the rate, in seconds; null without one), started and next_start (null if one may start now).

    Exit status: 0, even without keys; 2 for bad usage, a queue without limits, or a database that does not respond.
    """
    specs = _limited(queues)
    rows = queues.transact(
        lambda session: [(spec, each) for spec in specs for each in operations.limits(session, spec.entity)]
    )
    if as_json:
        print_json([_limit_facts(*row) for row in rows])
    elif rows:
        rates = any(each.rate for _, each in rows)
        rated = ["started", "rate", "next start"] if rates else []
        shown = [
            [spec.name, each.limit, each.running, *(_rated(each) if rates else []), each.key] for spec, each in rows
        ]
        print_table(["Queue", "limit", "running", *rated, "key"], shown, numbers=3 if rates else 2)
    else:
        say(f"No limit_key of {names_of(specs)} has been used yet.")


def _rated(found: Limit) -> list[object]:
    until = found.next_start
    return [found.started, str(found.rate), until and moment_text(until)] if found.rate else [None, None, None]


def set_limit(
    queues: Queues,
    key: Key,
    number: Places = None,
    *,
    none: Unlimited = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set how many tasks with this key may run at once, across all workers.

        sqlqueue set-limit --url postgresql+psycopg://me@host/shop shop.models:Crawl a.org 3

    Running tasks continue. If they exceed the limit, no more tasks with the key are claimed until enough of them have
    ended. The command asks for confirmation of a limit of 0, which stops the key, and of a key that no task has used
    yet.

    With --json: the object of sqlqueue limits, and before: the former limit (null for an unknown key, or without one).

    Exit status: 0, changed or not; 1 if you answer no; 2 for bad usage, a queue without limits, a database that does
    not respond, or a missing --yes without a terminal.
    """
    if (number is None) is not none:
        raise refusal("give the limit N, or --none")
    spec = _one_limited(queues)
    before = queues.transact(lambda session: _limit_of(session, spec, key))
    if number == 0 and (before is None or before.limit != 0):
        confirm(f"stop all tasks of {spec.name} with the key {key!r}", yes=yes)
    elif before is None:
        confirm(f"set a limit for {key!r}, a key that no task of {spec.name} has used yet", yes=yes)
    after = _changed(queues, spec, operations.set_limit, Limit(key, number, 0), number)
    was = "" if before is None else f" (it was {_or_none(before.limit)})"
    running = "" if after.running is None else f", {after.running} running"
    told = f"{spec.name}, key {key}: the limit is {_or_none(after.limit)}{was}{running}."
    report({**_limit_facts(spec, after), "before": before and before.limit}, told, as_json=as_json)


def set_rate(
    queues: Queues,
    key: Key,
    starts: Starts = None,
    *,
    per: Per = None,
    none: Unlimited = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set how many tasks with this key may start within a time, across all workers.

        sqlqueue set-rate --url postgresql+psycopg://me@host/shop shop.models:Crawl a.org 100 --per 1m
        sqlqueue set-rate --url postgresql+psycopg://me@host/shop shop.models:Crawl a.org --none

    Tasks that have started within the former time count. The command asks for confirmation of a key that no task has
    used yet.

    With --json: the object of sqlqueue limits.

    Exit status: 0, changed or not; 1 if you answer no; 2 for bad usage, a queue without limits, a database that does
    not respond, or a missing --yes without a terminal.
    """
    if none is not (starts is None and per is None) or (starts is None) is not (per is None):
        raise refusal("give the rate, as in 100 --per 1m, or --none")
    try:
        rate = None if starts is None or per is None else Rate(starts, per=per)
    except ArgumentError as error:
        raise refusal(str(error)) from error
    spec = _one_limited(queues)
    before = queues.transact(lambda session: _limit_of(session, spec, key))
    if before is None:
        confirm(f"set a rate for {key!r}, a key that no task of {spec.name} has used yet", yes=yes)
    after = _changed(queues, spec, operations.set_rate, Limit(key, None, None, rate), rate)
    was = "" if before is None else f" (it was {_or_none(before.rate)})"
    started = "" if after.rate is None else f", {after.started:,} started"
    told = f"{spec.name}, key {key}: the rate is {_or_none(after.rate)}{was}{started}."
    report(_limit_facts(spec, after), told, as_json=as_json)


def _or_none(found: object) -> object:
    return "none" if found is None else found


def _one_limited(queues: Queues) -> QueueSpec:
    spec, *others = _limited(queues)
    if others:
        names = names_of([spec, *others])
        raise refusal(f"{queues.target} has {len(others) + 1} queues with limits: use --queue with one of {names}")
    return spec


def _limited(queues: Queues) -> list[QueueSpec]:
    return queues.which(lambda spec: spec.is_limited, "the queues have no limits: derive {} from LimitMixin")


def _changed(queues: Queues, spec: QueueSpec, change: Callable[..., object], unread: Limit, to: object) -> Limit:
    """Change the limit or the rate of a key, and return what holds then; ``unread``: if no row says it."""

    def work(session: Session) -> Limit:
        change(session, spec.entity, unread.key, to)
        return _limit_of(session, spec, unread.key) or unread

    return queues.transact(work)


def _limit_of(session: Session, spec: QueueSpec, key: str) -> Limit | None:
    return next((each for each in operations.limits(session, spec.entity) if each.key == key), None)


def _limit_facts(spec: QueueSpec, found: Limit) -> dict[str, Any]:
    rate = {"starts": found.rate.starts, **facts(found.rate, "per")} if found.rate else {"starts": None, "per": None}
    started = facts(found, "started", "next_start")
    return {"queue": spec.name, **facts(found, "key", "limit", "running"), **rate, **started}


# -- the command `sqlqueue keys` --------------------------------------------------------------------------------------

Most = Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N keys of each queue.")]
After = Annotated[str | None, typer.Option(metavar="KEY", help="Only keys that come after this one.")]


def keys(queues: Queues, *, limit: Most = 100, after: After = None, as_json: AsJson = False) -> None:
    """Show the keys with waiting tasks: tenants that share a queue, keys with limits, or keys that keep their order.

        sqlqueue keys --url postgresql+psycopg://me@host/shop shop.models:Crawl
        sqlqueue pause --url postgresql+psycopg://me@host/shop shop.models:Crawl --key acme

    "ready" counts available tasks, up to 1,000. A key waits if it is paused, if it is full (as many of its tasks run as
    its limit allows), if its rate is used up, or if its first task holds it: "discarded 17" waits for sqlqueue retry,
    and "scheduled 17" until the given time. (none) stands for tasks without a key.

    With --json: an array of objects with queue (its table), key (null for tasks without one), ready, running, weight,
    limit (null without one), rate (null, or an object of starts and per, in seconds), started and next_start (by the
    rate), paused, and blocked_by (null, or an object of key, status and until).

    Exit status: 0, even without keys; 2 for bad usage, queues without keys, or a database that does not respond.
    """
    problem = "the queues have no keys: give {} fair=, sequential= or a LimitMixin"
    specs = queues.which(lambda spec: spec.keyed_by is not None, problem)
    if after is not None and len(specs) > 1:
        raise refusal(f"--after is for one queue: use --queue with one of {names_of(specs)}")
    found = queues.transact(lambda session: [(spec, _keys(session, spec, limit, after)) for spec in specs])
    shown = [(spec, each) for spec, some in found for each in some[:limit]]
    if as_json:
        print_json([_key_facts(*row) for row in shown])
    elif shown:
        headings = ["Key", "ready", "running", "limit", "weight", "state", *(["queue"] if len(specs) > 1 else [])]
        print_table(headings, [_key_row(*row, named=len(specs) > 1) for row in shown], numbers=4)
    else:
        say(f"No key of {names_of(specs)} has waiting tasks.")
    for spec, some in found:
        if len(some) > limit:
            complain(f"There are more keys of {spec.name}: --limit shows them.")


def _keys(session: Session, spec: QueueSpec, limit: int, after: str | None) -> list[KeyState]:
    return operations.keys(session, spec.entity, first=limit + 1, after=_key(spec, after))


def _key(spec: QueueSpec, text: str | None) -> Any:
    """Return a key that is given as text; the operations refuse keys of queues that have none."""
    return text if text is None or spec.keyed_by is None else value(spec.keyed_by, text)


def _key_row(spec: QueueSpec, each: KeyState, *, named: bool) -> list[object]:
    ready = f"{each.ready:,}{'+' * (each.ready >= COUNTED)}"
    key = "(none)" if each.key is None else each.key
    return [key, ready, each.running, each.limit, each.weight, each.obstacle, *([spec.name] if named else [])]


def _key_facts(spec: QueueSpec, each: KeyState) -> dict[str, Any]:
    block = each.blocked_by
    blocked = block and {"key": key_text(block.identity), "status": block.status, "until": block.until}
    figures = facts(each, "ready", "running", "weight", "limit", "started", "next_start", "paused")
    rate = each.rate and {"starts": each.rate.starts, "per": each.rate.per.total_seconds()}
    return {"queue": spec.name, "key": each.key, **figures, "rate": rate, "blocked_by": blocked}


# -- the commands `sqlqueue pause` and `sqlqueue resume` --------------------------------------------------------------

Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic. Default: the whole queue.")]
OneKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key, see sqlqueue keys.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, for others who find the queue paused.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who pauses it. Default: this account.")]


def pause(
    queues: Queues,
    *,
    topic: Topic = None,
    key: OneKey = None,
    reason: Reason = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Pause a queue for all workers, or a part of it, until sqlqueue resume.

        sqlqueue pause --url postgresql+psycopg://me@host/shop shop.models:Email --reason 'the mail server is down'
        sqlqueue pause --url postgresql+psycopg://me@host/shop shop.models:Crawl --key acme

    Within seconds, workers stop claiming its tasks; running tasks are not interrupted. Pauses are stored in the table
    of a model that derives from PauseMixin, which the application must have.

    With --json: an object of queue, topic, key, changed (false if it was already paused) and paused, an array of topic
    and key (both null for the whole queue), paused_at, paused_by and reason.

    Exit status: 0, changed or not; 2 for bad usage, no such model, or a database that does not respond.
    """
    who = _account() if by is None else by
    change = partial(operations.pause, reason=reason, paused_by=who)
    _change_pause(queues, topic, key, change, otherwise="It was already paused.", as_json=as_json)


def resume(queues: Queues, *, topic: Topic = None, key: OneKey = None, as_json: AsJson = False) -> None:
    """Resume a paused queue.

        sqlqueue resume --url postgresql+psycopg://me@host/shop shop.models:Email

    A topic or a key that was paused separately is resumed separately, with --topic or --key.

    With --json: the same object as sqlqueue pause; changed is false if it was not paused.

    Exit status: 0, changed or not; 2 for bad usage, no such model, or a database that does not respond.
    """
    _change_pause(queues, topic, key, operations.resume, otherwise="It was not paused.", as_json=as_json)


def _change_pause(
    queues: Queues, topic: str | None, key: str | None, change: Callable[..., bool], *, otherwise: str, as_json: bool
) -> None:
    """Change a pause and print what is paused now; ``otherwise`` says that the change was not necessary."""
    spec = queues.only
    part = _key(spec, key)
    of_key = {} if part is None else {"key": part}
    changed, found = queues.transact(
        lambda session: (change(session, spec.entity, topic, **of_key), operations.paused(session, spec.entity))
    )
    facts = {"queue": spec.name, "topic": topic, "key": part, "changed": changed, "paused": pauses(found)}
    told = [_pause_text(spec, each) for each in found] or [f"{spec.name} is not paused."]
    report(facts, *told, *([] if changed else [otherwise]), as_json=as_json)


def _pause_text(spec: QueueSpec, found: Pause) -> str:
    part = None if found.key is None else f"key {found.key}"
    part = part if found.topic is None else f"topic {found.topic}"
    what = spec.name if part is None else f"{spec.name}, {part},"
    why = f": {found.reason}" if found.reason else ""
    return readable(f"{what} has been paused since {plain(found.paused_at)} by {found.paused_by}{why}.")


def _account() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # e.g. in a container whose user has no name
        user = "unknown"
    return ascii_text(f"{user}@{host_name()}")[:LONGEST_NAME]


# -- the command `sqlqueue workers` -----------------------------------------------------------------------------------


WorkerCommand: TypeAlias = Literal["drain", "stop", "set-concurrency", "release"]
Do = Annotated[
    WorkerCommand | None,
    typer.Argument(
        metavar="ACTION", parser=choice(get_args(WorkerCommand)), help="drain, stop, set-concurrency or release."
    ),
]
Given = Annotated[
    str | None,
    typer.Argument(
        metavar="N|NAME",
        help="With set-concurrency: the number of concurrent calls. With the others: the worker, as with --worker.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--worker", "-w", metavar="NAME", help="Only this worker, by name or id; for release also by host."),
]
Force = Annotated[bool, typer.Option("--force", help="With release: even if the worker is not silent.")]


def workers(
    target: Target,
    action: Do = None,
    given: Given = None,
    *,
    url: Url,
    worker: Name = None,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the workers, and the queues that none of them serves; send workers a command, or release their tasks.

        sqlqueue workers --url postgresql+psycopg://me@host/shop shop.models:Base
        sqlqueue workers --url postgresql+psycopg://me@host/shop shop.models:Base drain web-1:211
        sqlqueue workers --url postgresql+psycopg://me@host/shop shop.models:Base release web-1

    Workers are registered in the table of a model that derives from WorkerMixin, which the application must have.
    live: the worker works. stalled: its event loop stands still, usually because a coroutine blocks it; its log says
    where. silent: it has not reported for 35 seconds, because it was killed, or cannot reach the database.

    drain: stop claiming, finish running tasks however long they take, and exit. stop: exit as on SIGTERM, with the
    worker's grace period. Processes that end are not replaced by sqlqueue work. set-concurrency N: run N calls of each
    handler at a time; without N, as many as it was registered with. Workers respond within ten seconds.

    release: make the tasks of a silent worker, or of all silent ones of a host, available to others, instead of waiting
    for the ends of their leases. No attempt counts. If such a worker still runs, it cannot settle these tasks any more,
    but what its handlers do outside of the database may happen twice. Workers that are not silent are refused, unless
    you give --force.

    With --json: an object of workers and unserved, an array of tables; after a command also told, the number of workers
    that it was sent to, and after release the numbers released and locked. Each worker has id, name, host, process,
    state, started_at, seen_at, stalled_at, version, slots, busy, idle, last_claim_at, memory (bytes), command,
    concurrency and handlers: an array of queue, functions, whole, slots and busy.

    Exit status: 0; 1 if you answer no; 2 for bad usage, no such model or worker, a database that does not respond, or a
    missing --yes without a terminal.
    """
    base = load(target)
    number, worker = _given(action, given, worker)
    if force and action != "release":
        raise refusal("--force is allowed only with release")
    check_registered(base)
    if action is not None and action != "set-concurrency":
        tasks = "the tasks of " if action == "release" else ""
        confirm(f"{action} {tasks}{worker or 'all workers'}", yes=yes)
    done: dict[str, int] = {}
    if action == "release":
        released = transact(url, lambda session: operations.release_workers(session, base, worker or "", force=force))
        done = {"released": released, "locked": released.locked}
    elif action is not None:
        done = {"told": transact(url, lambda session: _tell(session, base, action, number, worker))}
    if done.get("told") == 0 and worker is not None:
        raise refusal(f"no live worker is called {worker}")
    found, unserved = transact(url, lambda s: (operations.workers(s, base), operations.unserved(s, base)))
    tables = [model.__queue_spec__.name for model in unserved]
    if as_json:
        print_json({"workers": [_worker_facts(each) for each in found], "unserved": tables, **done})
    else:
        _show_workers(found, tables, done)


def _given(action: WorkerCommand | None, given: str | None, worker: str | None) -> tuple[int | None, str | None]:
    """Return the number of calls, and the name of the worker."""
    number: int | None = None
    if action == "set-concurrency" and given is not None:
        if not given.isdecimal() or not 1 <= int(given) <= MOST_AT_ONCE:
            raise refusal(f"set-concurrency {given}: give a number from 1 to {MOST_AT_ONCE:,}")
        number = int(given)
    elif given is not None:
        if worker is not None:
            raise refusal(f"both {given} and --worker {worker} are given: name one worker")
        worker = given
    if action == "release" and not worker:
        raise refusal("release needs the name, id or host of the workers")
    return number, worker


def _tell(session: Session, base: Any, action: WorkerCommand, number: int | None, worker: str | None) -> int:
    if action == "set-concurrency":
        return operations.set_concurrency(session, base, number, worker)
    told = operations.drain_workers if action == "drain" else operations.stop_workers
    return told(session, base, worker)


def _show_workers(found: list[WorkerInfo], unserved: list[str], done: Mapping[str, int]) -> None:
    if (told := done.get("told")) is not None:
        say(f"The command was sent to {told} worker{'s' * (told != 1)}.")
    if (released := done.get("released")) is not None:
        say(f"{released} task{'s were' if released != 1 else ' was'} released.")
    if locked := done.get("locked"):
        say(f"{locked} more wait for transactions that have locked them, or for the ends of their leases.")
    if found:
        headings = ["Worker", "busy", "slots", "MiB", "state", "seen", "started", "version", "serves"]
        print_table(headings, [_worker_row(each) for each in found], numbers=3)
    else:
        say("No worker is registered.")
    for table in unserved:
        say(f"No live worker serves {table}.")


def _worker_row(each: WorkerInfo) -> list[object]:
    memory = None if each.memory is None else each.memory // 2**20
    serves = ", ".join(dict.fromkeys(handler.queue for handler in each.handlers))
    state = each.state if each.command is None else f"{each.state}, {each.command} requested"
    return [each.name, each.busy, each.slots, memory, state, each.seen_at, each.started_at, each.version, serves]


def _worker_facts(each: WorkerInfo) -> dict[str, object]:
    return {
        **facts(each, "id", "name", "host", "process", "started_at", "seen_at", "version", "slots", "busy", "idle"),
        **facts(each, "state", "stalled_at", "last_claim_at", "memory"),
        "command": None if each.command is None else each.command.value,
        "concurrency": each.concurrency,
        "handlers": [facts(handler, "queue", "functions", "whole", "slots", "busy") for handler in each.handlers],
    }
