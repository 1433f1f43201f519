"""Graphs of batches and workflows: what waits for what."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import and_, null, or_, select

from .._support.errors import Claim
from .._support.texts import key_text, states_text
from ..model.declaration import QueueMixin
from ..queue.spec import Identity
from ..sql import only
from ..transaction import AnySession, is_restricted, row_of, session_of, within
from .flows import Children, TaskKin, batch_row, below, condition, groups_of, sources
from .latches import COMPLETED, EVENT, FAILED, WHENEVER, Latches, shown_state
from .placing import PART, THEN, flow_spec

LARGEST_GROUP, MOST_NODES, MOST_AROUND = 12, 200, 24
"""Tasks with the same predecessors and successors are one node if there are more; the most nodes of a graph, and those
before or after one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A node of a graph: a task; several tasks with the same predecessors and successors; an event or another batch
    that is in the batch, or that a task waits for; or the tasks for which there was no room."""

    name: str
    """A short name within the graph."""
    label: str
    entity: type[QueueMixin] | None
    """The model of the tasks; ``None`` for an event, a batch, or tasks for which there was no room."""
    identity: Identity | None
    """The primary key of a single task."""
    key: str | None
    """The key of an event or a batch."""
    states: Mapping[str, int]
    """The number of tasks in each state, in which ``skipped`` is one; an event is ``closed`` or ``open``, a batch
    ``unfinished``, ``failed`` or ``ended``."""
    when: str | None = None
    """Until what the tasks wait for is ``completed``, has ``failed`` in part, or is ``final``; ``None`` if they wait
    for nothing."""


AWAITED = {COMPLETED: "", FAILED: "failure of ", WHENEVER: "end of "}
"""What tasks wait for, in words that precede names of nodes."""


class FlowEdge(NamedTuple):
    """The tasks of ``target`` wait for those of ``source``."""

    source: str
    target: str
    when: str
    """Until these are ``completed``, one of them has ``failed``, or they are ``final``."""

    def awaits(self, names: str) -> str:
        """Return what the tasks wait for, the ``names`` of its sources, in words: ``failure of a, b``."""
        return f"{AWAITED[self.when]}{names}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The tasks of a batch, and what waits for what."""

    key: str
    nodes: Sequence[FlowNode]
    edges: Sequence[FlowEdge]
    left_out: int
    """The number of tasks that have no nodes of their own, because there would be more than 200 nodes.  Discarded ones
    have, then those of the first layers; each of the others is in a node for several layers."""
    members: Mapping[type[QueueMixin], Mapping[str, int]]
    """The number of all members in each state, by model, those of nested batches among them; without callbacks."""

    @property
    def before(self) -> Mapping[str, Sequence[FlowEdge]]:
        """The edges that lead to each node, by its name."""
        found: dict[str, list[FlowEdge]] = {node.name: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.target].append(edge)
        return found

    @property
    def layers(self) -> list[list[FlowNode]]:
        """The nodes by the length of the longest path to them."""
        depths = _depths({name: [edge.source for edge in edges] for name, edges in self.before.items()})
        found: list[list[FlowNode]] = [[] for _ in {*depths.values()}]
        for node in self.nodes:
            found[depths[node.name]].append(node)
        return found

    def waits_text(self, most: int) -> Mapping[str, str]:
        """Return in words what each node waits for, by its name: ``a, b``, ``failure of a, b and 2 more``.

        ``most``: how many nodes are named.
        """
        labels = {node.name: node.label for node in self.nodes}
        found = dict[str, str]()
        for name, edges in self.before.items():
            alike = defaultdict[str, list[FlowEdge]](list)
            for edge in edges:
                alike[edge.when].append(edge)
            texts = [some[0].awaits(_named([labels[edge.source] for edge in some], most)) for some in alike.values()]
            found[name] = "; ".join(texts)
        return found

    def mermaid(self) -> str:
        """Return the graph as a flowchart in the language of Mermaid."""
        lines = ["flowchart LR"]
        for node in self.nodes:
            left, right = ("[", "]") if node.key is None else ("([", "])")
            lines.append(f'    {node.name}{left}"{_quoted(node.label)}<br/>{states_text(node.states)}"{right}')
        for edge in self.edges:
            condition = "" if edge.when == COMPLETED else f"|{edge.when}|"
            lines.append(f"    {edge.source} -->{condition} {edge.target}")
        return "\n".join(lines)


def _named(labels: Sequence[str], most: int) -> str:
    rest = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def _depths(before: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the length of the longest path to each node, without edges that close a cycle: two transactions can make
    tasks wait for each other."""
    depths, seen, todo = dict[str, int](), set[str](), [*before][::-1]
    while todo:
        name = todo[-1]
        seen.add(name)
        missing = [each for each in before[name] if each not in seen]
        if missing:
            todo += missing
        else:
            todo.pop()
            depths.setdefault(name, max((depths[each] + 1 for each in before[name] if each in depths), default=0))
    return depths


def _quoted(text: str) -> str:
    """Return ``text`` so that Mermaid shows it as it is."""
    return re.sub(r"[^\w ,.:()/-]", lambda found: f"#{ord(found[0])};", text)


def graph(session: AnySession, entity: type[QueueMixin], key: str) -> Graph | None:
    """Return the tasks of a batch, its callbacks among them, and what waits for what; ``None`` if there is no such
    batch.

    ``entity``: a model of the queues with which it shares the table of latches.  More than 12 tasks that wait for the
    same and for which the same waits are one node, with the number of tasks in each state.  If there would be more than
    200 nodes, discarded tasks and those of the first layers have nodes; the others are in nodes for several layers, so
    that what is connected stays so.  Indexes find the tasks, all of which are counted.  A session with criteria or
    row-level security shows the tasks that it sees, and no batch without one.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    if batch_row(latches, key) is None:
        return None
    members = below(latches, [key], through=False)
    groups = dict(groups_of(latches, [*members, f"{key}{THEN}"]))
    if not groups and any(is_restricted(session, latches.adapter, each) for each in latches.flows.values()):
        return None
    awaited = {each.waits_for for each in groups if each.waits_for is not None}
    others = below(latches, [each for each in awaited if PART in each and each not in members], through=False)
    if outside := others.keys() - members.keys():  # the latches of tasks that are in no batch
        groups.update(groups_of(latches, outside))
    parts = {**members, **others}
    nodes = _Nodes(latches, groups, MOST_NODES)
    nodes.add_keys({*awaited, *(each for some in parts.values() for each in some)} - {key})
    nodes.add_tasks(_layers_of(groups, parts))
    inner = {*members, *(each for some in members.values() for each in some)}
    edges = nodes.edges(parts, inner, key)
    counts = defaultdict[type[QueueMixin], Counter[str]](Counter)
    nested = [each for some in members.values() for each in some if PART not in each]
    deeper = below(latches, nested) if nested else {}
    for group, states in {**groups, **dict(groups_of(latches, deeper))}.items():
        if group.reports_to in members or group.reports_to in deeper:
            counts[group.spec.entity].update(states)
    return Graph(key=key, nodes=nodes.all, edges=edges, left_out=nodes.left_out, members=counts)


class Around(NamedTuple):
    """What a task waits for and what waits for it, or has waited."""

    batch: str | None
    """The key of the batch to which it belongs."""
    before: Sequence[FlowNode]
    after: Sequence[FlowNode]
    when: str | None
    """Until when it waits, or has waited, for ``before``, as of other nodes."""


def around(session: AnySession, task: QueueMixin | Claim) -> Around | None:
    """Return what is around a task in graphs; ``None`` if there is no such task, or it waits for nothing and is in no
    batch."""
    own, identity = row_of(task)
    session = session_of(session)
    latches = Latches.of(session, flow_spec(own.entity))
    named = within(session, own, [own.key(identity)])
    columns = [own["waits_for"], own["reports_to"], own["waits_when"]]
    found = latches.adapter.rows.values(session, own, named, columns)
    if found is None or found[:2] == [None, None]:
        return None
    awaited, latch, when = found
    parts = {} if awaited is None else below(latches, [awaited], through=False)
    before = _Nodes(latches, dict(groups_of(latches, parts)), MOST_AROUND)
    before.add_keys({each for each in (awaited, *(each for some in parts.values() for each in some)) if each})
    before.add_tasks({})
    after = _Nodes(latches, {} if latch is None else _waiters(latches, latch), MOST_AROUND)
    after.add_tasks({})
    return Around(_batch_of(latches, latch), before.all, after.all, condition(awaited, when))


def _waiters(latches: Latches, latch: str) -> dict[TaskKin, Counter[str]]:
    """Return the tasks that wait, or have waited, for the tasks of a latch alone, or for these and others."""
    c, rows = latches.c, latches.adapter.rows
    linked = latches.read(latches.spec, select(c.reports_to).where(c.waits_for == latch, c.reports_to.is_not(None)))
    ids = [latch, *(key for (key,) in linked)]
    return dict(
        each
        for spec in latches.flows.values()
        for each in groups_of(latches, ids, spec, rows.one_of(spec, spec["waits_for"], ids))
    )


def _batch_of(latches: Latches, latch: str | None) -> str | None:
    c = latches.c
    while latch is not None and latch.startswith(PART):
        (latch,) = next(iter(latches.read(latches.spec, select(c.reports_to).where(c.id == latch))), (None,))
    key = (latch or "").partition(PART)[0]
    return key if key and batch_row(latches, key) is not None else None  # it may be an event


def _layers_of(groups: Collection[TaskKin], parts: Children) -> dict[str | None, int]:
    """Return the layer of the tasks that wait for each latch, before groups are left out."""
    waits = defaultdict[str | None, set[str]](set)
    for group in groups:
        if group.waits_for is not None:
            waits[group.reports_to].add(group.waits_for)
    awaited = {latch for some in waits.values() for latch in some}
    before = {latch: {each for part in sources(parts, latch) for each in waits[part]} for latch in awaited}
    return {latch: depth + 1 for latch, depth in _depths(before).items()}


class _Nodes:
    """The nodes of groups of tasks; if there are too many, those of several layers are one."""

    def __init__(self, latches: Latches, groups: Mapping[TaskKin, Counter[str]], most: int) -> None:
        self.all: list[FlowNode] = []
        self.left_out = 0
        self._latches = latches
        self._groups = groups
        self._most = most
        self._by_latch = defaultdict[str, list[FlowNode]](list)
        self._by_group: dict[TaskKin, list[FlowNode]] = {}

    def add_keys(self, latches: Collection[str]) -> None:
        """Add those of these latches that are events and batches."""
        c, rows, spec = self._latches.c, self._latches.adapter.rows, self._latches.spec
        keys = [each for each in latches if PART not in each]
        asked = select(c.id, c.sealed, c.opened_at, c.broken_at).where(rows.one_of(spec, c.id, keys)).order_by(c.id)
        for key, sealed, opened, broken in self._latches.read(spec, asked) if keys else ():
            before, after = ("closed", "open") if sealed == EVENT else ("unfinished", "ended")
            state = "failed" if broken is not None else before if opened is None else after
            self._add(key, label=key, entity=None, identity=None, key=key, states={state: 1})

    def add_tasks(self, layers: Mapping[str | None, int]) -> None:
        """Add the tasks, as far as there is room: discarded ones, then those of the first layers, whatever else their
        states are, so that it is always the same ones.  ``layers``: those of tasks that wait for each latch."""

        def order(group: TaskKin) -> tuple[Any, ...]:
            return not self._groups[group]["discarded"], layers.get(group.waits_for, 0), _place(group)

        number, shown, hidden = len(self.all), list[TaskKin](), list[TaskKin]()
        for group in sorted(self._groups, key=order):
            size = self._groups[group].total()
            number += size if size <= LARGEST_GROUP else 1
            (shown if number <= self._most else hidden).append(group)
        tasks = self._tasks([each for each in shown if self._groups[each].total() <= LARGEST_GROUP])
        for group in sorted(shown, key=_place):
            self._by_group[group] = list(self._draw(group, tasks[group]))
        # a node of layers between which nothing is shown: a path that leaves it does not lead back to it
        levels = sorted({layers.get(group.waits_for, 0) for group in shown})
        spans = defaultdict[int, list[TaskKin]](list)
        for group in hidden:
            spans[bisect_left(levels, layers.get(group.waits_for, 0))].append(group)
        for span in spans.values():
            self._add_more(span)

    def _add_more(self, groups: Sequence[TaskKin]) -> None:
        """Add the node of groups for which there is no room."""
        states = Counter[str]()
        for group in groups:
            states.update(self._groups[group])
        number = states.total()
        label = "1 more task" if number == 1 else f"{number:,} more tasks"
        latches = {group.reports_to or "" for group in groups}
        node = self._add(*latches, label=label, entity=None, identity=None, key=None, states=dict(states))
        self._by_group.update((group, [node]) for group in groups)
        self.left_out += number

    def edges(self, parts: Children, inner: Collection[str], key: str) -> list[FlowEdge]:
        """Return the edges.  ``parts``: the latches on which each latch depends; ``inner``: those of members of the
        batch with this ``key``, for all of which its callbacks wait."""
        targets = dict.fromkeys(
            (str(group.waits_for), group.when or COMPLETED, node.name)
            for group, nodes in self._by_group.items()
            if group.waits_for is not None
            for node in nodes
        )
        found = dict.fromkeys(
            FlowEdge(source.name, target, when)
            for latch, when, target in targets
            if latch != key
            for part in sources(parts, latch)
            for source in self._by_latch[part]
            if source.name != target
        )
        with_others = {edge.source for edge in found}
        ends = [node.name for latch in inner for node in self._by_latch[latch] if node.name not in with_others]
        last = dict.fromkeys(
            FlowEdge(source, target, when)
            for latch, when, target in targets
            if latch == key
            for source in ends
            if source != target
        )
        return [*found, *last]

    def _add(self, *latches: str, **values: Any) -> FlowNode:
        node = FlowNode(name=f"n{len(self.all) + 1}", **values)
        self.all.append(node)
        for latch in latches:
            self._by_latch[latch].append(node)
        return node

    def _tasks(self, groups: Sequence[TaskKin]) -> Mapping[TaskKin, Sequence[tuple[Identity, str]]]:
        """Return the keys and states of the tasks of these groups."""
        found = defaultdict[TaskKin, list[Any]](list)
        for spec in {each.spec: None for each in groups}:
            latch, awaited, when, status = (spec[r] for r in ("reports_to", "waits_for", "waits_when", "status"))
            chosen = or_(*(and_(latch == g.reports_to, awaited == g.waits_for) for g in groups if g.spec is spec))
            columns = (latch, awaited, when, status, spec["task"] if "task" in spec.columns else null())
            asked = select(*columns, *spec.primary_key).select_from(spec.mapper.persist_selectable)
            asked = asked.where(only(spec, *within(self._latches.session, spec, (chosen,)))).order_by(*spec.primary_key)
            for reports, waits, cause, state, function, *key in self._latches.read(spec, asked):
                group = TaskKin(spec, reports, waits, condition(waits, cause), function)
                found[group].append((tuple(key), shown_state(state, cause)))
        return found

    def _draw(self, group: TaskKin, tasks: Sequence[tuple[Identity, str]]) -> Iterator[FlowNode]:
        values = {"entity": group.spec.entity, "key": None, "when": group.when}
        name, states = group.function or group.spec.entity.__name__, self._groups[group]
        latch = group.reports_to or ""
        if states.total() > LARGEST_GROUP:
            label = f"{states.total():,} tasks of {name}"
            yield self._add(latch, label=label, identity=None, states=dict(states), **values)
        else:
            for key, state in tasks:
                yield self._add(latch, label=f"{name} {key_text(key)}", identity=key, states={state: 1}, **values)


def _place(group: TaskKin) -> tuple[Any, ...]:
    """Return a place in an order in which tasks that were added earlier come first, and callbacks last."""
    parts = (re.split(r"(\d+)", key or "") for key in (group.waits_for, group.reports_to))
    numbers = ([(each.isdigit(), int(each) if each.isdigit() else 0, each) for each in key] for key in parts)
    return ((group.reports_to or "").endswith(THEN), *numbers, group.spec.name, group.when or "", group.function or "")
