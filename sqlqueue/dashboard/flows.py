"""The pages of batches and workflows: the list, and one of them with its graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .. import operations
from .._support.errors import ArgumentError
from .._support.texts import states_text
from ..model.companions import latches_of
from ..operations import BatchInfo, BatchProgress, FlowEdge, FlowNode, Graph, member_of
from ..operations.paging import Page, find_all, key_of
from ..queue.options import FINAL, Status
from ..queue.spec import QueueSpec, spec_of
from ..sql import present, state
from ..transaction import open_
from .access import CELL, Exposure
from .site import Site, places_of, respond, site_of
from .tasks import SHOWN, TaskList, row_of

# -- the list of batches ----------------------------------------------------------------------------------------------

BATCHES = 100
"""The maximum number of batches that are shown."""


async def show_batches(request: Request) -> Response:
    """Show the batches that have not ended, or all."""
    site, ended = site_of(request), request.query_params.get("all") == "1"
    spec = _flow_of(site)

    def read(session: Session) -> tuple[list[BatchInfo], datetime]:
        found = operations.batches(session, spec.entity, ended=ended, limit=BATCHES + 1)
        return found, present(session, spec)

    found, now, problem = list[BatchInfo](), None, None
    try:
        found, now = await site.read(("batches", ended), read, spec)
    except ArgumentError as error:
        problem = str(error)
    shown: dict[str, Any] = {"found": found[:BATCHES], "is_cut": len(found) > BATCHES, "most": BATCHES}
    return respond(request, "batches.html", **shown, now=now, ended=ended, problem=problem)


def _flow_of(site: Site) -> QueueSpec:
    """Return a queue that can have batches; 404 if none can."""
    found = next((spec for spec in site.queues.values() if latches_of(spec) is not None), None)
    if found is None:
        raise HTTPException(404, "No queue has batches: derive a model from FlowMixin, and one from LatchMixin.")
    return found


# -- the page of a batch ----------------------------------------------------------------------------------------------

CULPRITS = 10
"""The maximum number of dead letters that are shown of each queue."""
NAMED = 12
"""The maximum number of nodes that are named as those for which another one waits."""
_ORDER = (*Status, "skipped")
"""The order of states in bars."""


class Share(NamedTuple):
    """A part of a bar, in percent of its width."""

    state: str
    number: int
    x: float
    width: float


Found: TypeAlias = tuple[BatchProgress, Graph, Sequence[TaskList], datetime]
"""A batch, its graph and some dead letters, and when they were read, by the database's clock."""


async def show_batch(request: Request) -> Response:
    """Show a batch: how far it is, what has failed, and its graph."""
    site, key = site_of(request), request.query_params.get("key", "")
    spec = _flow_of(site)
    try:
        read = partial(_read, spec=spec, exposure=site.exposure, names=set(site.queues), key=key)
        found = await site.read(("batch", key), read, spec)
    except ArgumentError as error:
        raise HTTPException(404, str(error)) from error
    if isinstance(found, str):
        raise HTTPException(404, f"{found[:1].upper()}{found[1:]}.")
    batch, graph, culprits, now = found
    counts = Counter[str]()
    for entity, states in graph.members.items():
        counts.update(states if spec_of(entity).name in site.queues else {})
    return respond(
        request,
        "batch.html",
        batch=batch,
        now=now,
        graph=graph,
        members=[_members(spec_of(entity), states) for entity, states in graph.members.items()],
        shown=site.queues,
        culprits=culprits,
        has_failed="discarded" in counts,
        has_unfinished=not counts.keys() <= {*FINAL, "skipped"},
        drawing=draw(graph),
        places=places_of(request),
        waits=graph.waits_text(NAMED),
        named=NAMED,
    )


def _read(session: Session, spec: QueueSpec, exposure: Exposure, names: set[str], key: str) -> Found | str:
    progress, graph = operations.progress(session, spec.entity, key), operations.graph(session, spec.entity, key)
    if progress is None or graph is None:
        return operations.no_batch_text(session, spec.entity, key)
    failing = [spec_of(entity) for entity, states in graph.members.items() if states.get(Status.DISCARDED)]
    culprits = [_culprits(session, exposure, each, key) for each in failing if each.name in names]
    return progress, graph, culprits, present(session, spec)


def _culprits(session: Session, exposure: Exposure, spec: QueueSpec, key: str) -> TaskList:
    """Read some dead letters of a batch."""
    failed = (member_of(spec.entity, key), spec["status"] == state(Status.DISCARDED))
    # by a column that no index has: in the order of a key, the whole queue might be read for a few rows
    options, order = [exposure.loading(spec, SHOWN)], (spec["error"],)
    tasks = find_all(session, spec.entity, *failed, limit=CULPRITS + 1, order_by=order, options=options)
    shown = tasks[:CULPRITS]
    cut = exposure.texts(open_(session, spec), session, spec, [key_of(spec, task) for task in shown], CELL)
    rows: list[Any] = [row_of(exposure, spec, task, cut) for task in shown]
    page: Page[Any] = Page(tasks=rows, next=None, previous=None, is_cut=len(tasks) > CULPRITS)
    named = exposure.columns.get(spec.entity, ())
    return TaskList(spec=spec, page=page, now=present(session, spec), named=named, scanned=0)


def _members(spec: QueueSpec, states: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page shows of the members of one model."""
    total, x, shares = sum(states.values()), 0.0, list[Share]()
    for name in sorted(states, key=lambda each: _ORDER.index(each) if each in _ORDER else len(_ORDER)):
        width = 100 * states[name] / total
        shares.append(Share(name, states[name], round(x, 3), round(width, 3)))
        x += width
    return {"spec": spec, "shares": shares}


# -- the graph: layers from left to right. All positions are pixels ---------------------------------------------------

WIDTH, HEIGHT, BETWEEN_LAYERS, BETWEEN_NODES, MARGIN = 184, 46, 56, 14, 6
LONGEST = 21
"""The maximum number of characters of a label, and of states in words."""


class Box(NamedTuple):
    """A node at its place."""

    node: FlowNode
    x: int
    y: int
    state: str
    """The state that decides its colour."""
    label: str
    text: str
    """The states in words."""
    whole: str
    """Both, not shortened."""


class Arrow(NamedTuple):
    """An edge at its place."""

    path: str
    when: str
    title: str
    """Which node waits for what, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph with all positions."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    width: int
    height: int


class _Lane(NamedTuple):
    """A place in a layer through which arrows with one condition lead from a node to later layers, so that they do not
    lead behind others."""

    source: str
    when: str
    layer: int


def draw(graph: Graph) -> Drawing:
    """Return the positions of a graph's nodes and edges: layers by the longest path, in which nodes are near to those
    for which they wait."""
    rows: list[list[str | _Lane]] = [[node.name for node in layer] for layer in graph.layers]
    layer_of = {str(name): number for number, row in enumerate(rows) for name in row}
    lanes = {edge: _lanes(edge, layer_of) for edge in graph.edges}
    for lane in dict.fromkeys(lane for some in lanes.values() for lane in some):
        rows[lane.layer].append(lane)
    routes: list[list[str | _Lane]] = [[edge.source, *some, edge.target] for edge, some in lanes.items()]
    before = defaultdict[str | _Lane, list[str | _Lane]](list)
    for source, target in (step for route in routes for step in pairwise(route)):
        before[target].append(source)
    tallest, places = max(map(_height, rows), default=0), dict[str | _Lane, tuple[int, int]]()
    for number, row in enumerate(rows):
        x, y = MARGIN + number * (WIDTH + BETWEEN_LAYERS), MARGIN + (tallest - _height(row)) // 2
        heights = {each: [places[some][1] for some in before[each] if some in places] for each in row}
        for place in sorted(row, key=lambda each: fmean(heights[each] or [0])):
            places[place] = (x, y + _height([place]) // 2)
            y += _height([place]) + BETWEEN_NODES
    labels = {node.name: node.label for node in graph.nodes}
    arrows = [
        Arrow(
            _path([places[place] for place in route]),
            edge.when,
            f"{labels[edge.target]} waits for {edge.awaits(labels[edge.source])}",
        )
        for edge, route in zip(lanes, routes, strict=True)
    ]
    return Drawing(
        boxes=[_box(node, *places[node.name]) for node in graph.nodes],
        arrows=arrows,
        width=2 * MARGIN + len(rows) * (WIDTH + BETWEEN_LAYERS) - BETWEEN_LAYERS,
        height=2 * MARGIN + tallest,
    )


def _lanes(edge: FlowEdge, layer_of: Mapping[str, int]) -> list[_Lane]:
    passed = range(layer_of[edge.source] + 1, layer_of[edge.target])
    return [_Lane(edge.source, edge.when, number) for number in passed]


def _height(row: Sequence[str | _Lane]) -> int:
    """Return the height of nodes and lanes, one below another."""
    return sum(HEIGHT for place in row if isinstance(place, str)) + (len(row) - 1) * BETWEEN_NODES


def _box(node: FlowNode, x: int, middle: int) -> Box:
    ordered = sorted(node.states, key=lambda name: _WORST.index(name) if name in _WORST else len(_WORST))
    text = states_text({name: node.states[name] for name in ordered})
    return Box(node, x, middle - HEIGHT // 2, ordered[0], _cut(node.label), _cut(text), f"{node.label}: {text}")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


_WORST = ("discarded", "failed", "cancelled", "running", "retryable", "available", "scheduled", "waiting", "closed")
"""The states of which the first decides the colour of several tasks, and stands first: what follows may be cut."""


def _path(places: Sequence[tuple[int, int]]) -> str:
    """Return the path from a node, through lanes, to another node."""
    parts, bend = list[str](), BETWEEN_LAYERS // 2
    for (left, y), (to_x, to_y) in pairwise(places):
        x = left + WIDTH
        parts.append(f"{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x - 2} {to_y}")
    return f"M{'L'.join(parts)}"
