"""The pages of batches and workflows: the list, and one of them with its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .. import operations
from .._support.errors import ArgumentError
from .._support.texts import states_text
from ..model.companions import latches_of
from ..operations import BatchInfo, BatchProgress, FlowNode, Graph, member_of
from ..operations.paging import Page, find_all, key_of
from ..queue.options import Status
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
    if found is None:
        raise HTTPException(404, "There is no such batch: it was forgotten some time after its end, or never existed.")
    batch, graph, culprits, now = found
    labels = {node.name: node.label for node in graph.nodes}
    return respond(
        request,
        "batch.html",
        batch=batch,
        now=now,
        graph=graph,
        members=[_members(spec_of(entity), states) for entity, states in graph.members.items()],
        shown={spec.name for spec in site.queues.values()},
        culprits=culprits,
        drawing=draw(graph),
        places=places_of(request),
        before={name: [labels[each] for each in some] for name, some in graph.before.items()},
    )


def _read(session: Session, spec: QueueSpec, exposure: Exposure, names: set[str], key: str) -> Found | None:
    progress, graph = operations.progress(session, spec.entity, key), operations.graph(session, spec.entity, key)
    if progress is None or graph is None:
        return None
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
    unfinished = any(name not in ("completed", "cancelled", "discarded", "skipped") for name in states)
    return {"spec": spec, "shares": shares, "has_failed": "discarded" in states, "has_unfinished": unfinished}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph with all positions."""

    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    width: int
    height: int


def draw(graph: Graph) -> Drawing:
    """Return the positions of a graph's nodes and edges: layers by the longest path, in which nodes are near to those
    for which they wait."""
    before, layers, places = graph.before, graph.layers, dict[str, tuple[int, int]]()
    tallest = max(map(len, layers), default=0)
    for number, layer in enumerate(layers):
        top = MARGIN + (tallest - len(layer)) * (HEIGHT + BETWEEN_NODES) // 2
        for place, node in enumerate(sorted(layer, key=_height_of(places, before))):
            places[node.name] = (MARGIN + number * (WIDTH + BETWEEN_LAYERS), top + place * (HEIGHT + BETWEEN_NODES))
    boxes = [_box(node, *places[node.name]) for node in graph.nodes]
    arrows = [Arrow(_path(places[edge.source], places[edge.target]), edge.when) for edge in graph.edges]
    return Drawing(
        boxes=boxes,
        arrows=arrows,
        width=2 * MARGIN + len(layers) * (WIDTH + BETWEEN_LAYERS) - BETWEEN_LAYERS,
        height=2 * MARGIN + tallest * (HEIGHT + BETWEEN_NODES) - BETWEEN_NODES,
    )


def _height_of(
    places: Mapping[str, tuple[int, int]], before: Mapping[str, Sequence[str]]
) -> Callable[[FlowNode], float]:
    """Return a key that sorts the nodes of a layer by the mean height of those for which they wait."""

    def height(node: FlowNode) -> float:
        heights = [places[name][1] for name in before[node.name]]
        return sum(heights) / len(heights) if heights else 0

    return height


def _box(node: FlowNode, x: int, y: int) -> Box:
    text = states_text(node.states)
    worst = min(node.states, key=lambda name: _WORST.index(name) if name in _WORST else len(_WORST))
    return Box(node, x, y, worst, _cut(node.label), _cut(text), f"{node.label}: {text}")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


_WORST = ("discarded", "failed", "cancelled", "running", "retryable", "available", "scheduled", "waiting", "closed")
"""The states of which the first decides the colour of several tasks."""


def _path(source: tuple[int, int], target: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = (source[0] + WIDTH, source[1] + HEIGHT // 2), (target[0], target[1] + HEIGHT // 2)
    bend = BETWEEN_LAYERS // 2
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x - 2} {to_y}"
