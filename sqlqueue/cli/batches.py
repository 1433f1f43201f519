"""The commands that show batches and workflows, and open events: ``batches``, ``batch``, ``open``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.texts import key_text, states_text
from ..operations import BatchInfo, BatchProgress, FlowNode, Graph, spoken
from ..sql import present
from ._options import AsJson, Queues
from ._output import complain, facts, plain, print_json, print_record, print_table, refusal, report, say

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the batch.")]
EventKey = Annotated[str, typer.Argument(metavar="KEY", help="The key of the event.")]
Ended = Annotated[bool, typer.Option("--all", help="Also those that have ended.")]
Most = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of batches.")]
AsMermaid = Annotated[bool, typer.Option("--mermaid", help="Print the graph in the language of Mermaid, and no more.")]
Payload = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="A value for the handlers, which session.event() returns."),
]
_FACTS = ("key", "created_at", "opened_at", "broken_at", "sealed", "unfinished")


def batches(queues: Queues, *, ended: Ended = False, limit: Most = 20, as_json: AsJson = False) -> None:
    """Show the batches and workflows that have not ended, the oldest first.

        sqlqueue batches --url postgresql+psycopg://me@host/shop shop.models:Base

    "unfinished" counts the members that are not final, "failed" those that were discarded or cancelled. With --all, the
    batches that have ended follow, the last to end first.

    With --json: an array of objects with key, created_at, opened_at (when it had ended, else null), broken_at (when a
    member had failed, else null), sealed (false if it takes further members), unfinished and failed.

    Exit status: 0, even without batches; 2 for bad usage or a database that does not respond.
    """
    spec = queues.with_batches[0]

    def read(session: Session) -> tuple[list[BatchInfo], datetime]:
        return operations.batches(session, spec.entity, ended=ended, limit=limit + 1), present(session, spec)

    found, now = queues.transact(read, spec)
    shown = found[:limit]
    if as_json:
        print_json([facts(each, *_FACTS, "failed") for each in shown])
    elif shown:
        rows = [[each.key, each.unfinished, each.failed, spoken(now - each.created_at), _state(each)] for each in shown]
        print_table(["Batch", "unfinished", "failed", "age", "state"], rows, numbers=3)
    else:
        say("There are no batches." if ended else "There are no batches that have not ended.")
    if len(found) > limit:
        complain("There are more: --limit shows them.")


def batch(queues: Queues, key: Key, mermaid: AsMermaid = False, as_json: AsJson = False) -> None:
    """Show a batch or workflow: how its members have ended, its tasks, and what waits for what.

        sqlqueue batch --url postgresql+psycopg://me@host/shop shop.models:Base 'import 7'
        sqlqueue retry --url postgresql+psycopg://me@host/shop shop.models:Base --batch 'import 7'
        sqlqueue cancel --url postgresql+psycopg://me@host/shop shop.models:Base --batch 'import 7'

    More than 12 tasks that wait for the same are one line. If there would be more than 200 lines, discarded tasks and
    the first ones have lines; the others share lines such as "7 more tasks". Of what a task waits for, three are named.

    With --json: an object of key, created_at, opened_at (when it had ended, else null), broken_at (when a member had
    failed, else null), sealed (false if it takes further members), unfinished, completed, discarded, cancelled, skipped
    (members that were not needed), total, nodes, edges and left_out (the number of tasks in nodes that they share for
    want of room). A node has name, label, when (completed, failed or final: until when it waits), model, id (of a
    single task), key (of an event, or of another batch) and states, an object of numbers; an edge has source, target
    (names of nodes) and when. null if there is no such batch, as for an event.

    Exit status: 0, found or not; 2 for bad usage or a database that does not respond.
    """
    if mermaid and as_json:
        raise refusal("--mermaid cannot be combined with --json")
    spec = queues.with_batches[0]

    def read(session: Session) -> tuple[BatchProgress, Graph] | str:
        found, drawn = operations.progress(session, spec.entity, key), operations.graph(session, spec.entity, key)
        return operations.no_batch_text(session, spec.entity, key) if found is None or drawn is None else (found, drawn)

    whole = queues.transact(read, spec)
    if isinstance(whole, str):
        report(None, f"{whole}.", as_json=as_json)
        return
    found, drawn = whole
    if mermaid:
        say(drawn.mermaid())
    elif as_json:
        print_json(_whole(found, drawn))
    else:
        _print(found, drawn)


def open_(queues: Queues, key: EventKey, payload: Payload = None, as_json: AsJson = False) -> None:
    """Open an event: the tasks that wait for it start, and later ones do not wait.

        sqlqueue open --url postgresql+psycopg://me@host/shop shop.models:Base label:7 --payload '{"url": "..."}'

    The first one wins: an event that is open already is left unchanged.

    With --json: an object of key and changed (false if it was open already).

    Exit status: 0, changed or not; 2 for bad usage, the key of a batch, or a database that does not respond.
    """
    spec = queues.with_batches[0]
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as error:
        raise refusal(f"{payload!r} is not JSON: {error}") from error
    changed = queues.transact(lambda session: operations.open_event(session, spec.entity, key, value), spec)
    told = f"{key} is open." if changed else f"{key} was open already: nothing is changed."
    report({"key": key, "changed": changed}, told, as_json=as_json)


def _state(found: BatchInfo | BatchProgress) -> str:
    state = "unfinished" if found.opened_at is None else "ended"
    state = state if found.sealed else f"{state}, not sealed"
    return state if found.broken_at is None else f"{state}, with failures"


def _whole(found: BatchProgress, drawn: Graph) -> dict[str, Any]:
    return {
        **facts(found, *_FACTS, "completed", "discarded", "cancelled", "skipped", "total"),
        "nodes": [node_facts(node) for node in drawn.nodes],
        "edges": [edge._asdict() for edge in drawn.edges],
        "left_out": drawn.left_out,
    }


def node_facts(node: FlowNode) -> dict[str, Any]:
    """Return a node as ``--json`` prints it."""
    entity = node.entity
    return {
        **facts(node, "name", "label", "when"),
        "model": None if entity is None else f"{entity.__module__}.{entity.__qualname__}",
        "id": None if node.identity is None else key_text(node.identity),
        "key": node.key,
        "states": dict(node.states),
    }


def _print(found: BatchProgress, drawn: Graph) -> None:
    ends = {name: getattr(found, name) for name in ("unfinished", "completed", "discarded", "cancelled", "skipped")}
    told = {
        "batch": found.key,
        "state": _state(found),
        "created": found.created_at,
        "failed": found.broken_at,
        "ended": found.opened_at,
        "members": states_text({name: number for name, number in ends.items() if number}) if found.total else "none",
    }
    shown = [(name, plain(value, lines=False)) for name, value in told.items() if value is not None]
    print_record(shown, texts=["members"])
    if drawn.nodes:
        say("")
        waits = drawn.waits_text(most=3)
        rows = [[node.label, states_text(node.states), waits[node.name]] for layer in drawn.layers for node in layer]
        print_table(["Task", "state", "waits for"], rows, texts=["state", "waits for"])
