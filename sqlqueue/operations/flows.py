"""Reads batches and workflows: how far they are, the tasks that come before others, and their graphs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Select, and_, func, null, or_, select

from .._support.checks import count
from .._support.errors import ArgumentError, Claim
from .._support.texts import key_text
from ..model.companions import OUTCOMES, latches_of
from ..model.declaration import QueueMixin
from ..queue.options import FINAL
from ..queue.spec import Criterion, Identity, QueueSpec, Where
from ..sql import only
from ..transaction import Access, AnySession, is_restricted, refuse_if_restricted, row_of, running, session_of, within
from .bulk import cancel_where
from .latches import COMPLETED, EVENT, FAILED, SEALED, SKIPPED, Latches, has_failed
from .placing import PART, THEN, check_key, flow_spec

T = TypeVar("T", bound=QueueMixin)
Children = Mapping[str, Sequence[str]]
"""Latches by the one that depends on them."""
_AT_ONCE = 500
"""The number of predecessors that are loaded by one statement."""
LARGEST_GROUP, MOST_NODES = 12, 200
"""Tasks of a graph that have the same predecessors and successors are one node if there are more; its most nodes."""


def member_of(entity: type[QueueMixin], key: str) -> Criterion:
    """Return the criterion of tasks that are members of the batch with this key, or of one that is nested in it:
    ``session.retry(Page, member_of(Page, "import 7"))``.  Its callbacks are no members."""
    spec = flow_spec(entity)
    latch: Any = latches_of(spec)
    c = latch.table.c
    below = select(c.id).where(c.id == check_key(key)).cte("below", recursive=True, nesting=True)
    other = latch.table.alias("part").c
    below = below.union_all(select(other.id).join(below, other.reports_to == below.c.id))
    return spec["reports_to"].in_(select(below.c.id))


def cancel_batch(session: AnySession, entity: type[QueueMixin], key: str, *, limit: int | None = None) -> int:
    """Cancel the members of a batch, of all models, that are not final, as :func:`cancel` does with criteria, and
    return how many.  Its callbacks then start, or are cancelled, as after other failures.

    ``entity``: a model of the queues with which the batch shares the table of latches.  ``limit``: the most tasks to
    cancel in this transaction; fewer are cancelled only when no more are left.
    """
    session, spec = session_of(session), flow_spec(entity)
    if limit is not None:
        count("limit", limit)
    latches = Latches.of(session, spec, Access.CHANGE)
    ids, cancelled = [*_below(latches, [check_key(key)])], 0
    for each in latches.flows.values():
        left = None if limit is None else limit - cancelled
        if left != 0:
            members = latches.adapter.rows.one_of(each, each["reports_to"], ids)
            cancelled += cancel_where(session, each, (members,), left)
    return cancelled


def _read(latches: Latches, spec: QueueSpec, asked: Select[Any]) -> Any:
    return latches.adapter.rows.execute(latches.session, spec, asked).all()


def _below(latches: Latches, starts: Iterable[str], *, through: bool = True) -> dict[str, list[str]]:
    """Return these latches, and those whose members they wait for, with the latches that each depends on; ``through``:
    also those of batches in them."""
    c, rows = latches.c, latches.adapter.rows
    found: dict[str, list[str]] = {}
    todo = list(dict.fromkeys(starts))
    while todo:
        parts = defaultdict[str, list[str]](list)
        asked = select(c.reports_to, c.id, c.waits_for).where(rows.one_of(latches.spec, c.reports_to, todo))
        for parent, child, source in _read(latches, latches.spec, asked.order_by(c.id)):
            parts[parent].append(source or child)
        found.update((key, parts[key]) for key in todo)
        reached = dict.fromkeys(each for key in todo for each in parts[key])
        todo = [each for each in reached if each not in found and (through or PART in each)]
    return found


# -- results of predecessors ------------------------------------------------------------------------------------------


def predecessors(
    session: AnySession, entity: type[T], *where: Where, of: QueueMixin | Claim | None = None
) -> Iterator[T]:
    """Return the tasks of a model for which a task has waited, for example to read their results:

    >>> @worker.task(Job)
    ... def summarize(session: QueueSession) -> int:
    ...     return sum(job.result for job in session.predecessors(Job))

    Those of a callback are all members of its batch.  ``of``: the task, or a claim of it; by default the one whose
    handler calls this.  ``where``: further criteria, such as ``Job.status == "completed"`` for a task that waits until
    all are final, whatever happened.

    Their primary keys are read at once, and the tasks, in the order of these, a few hundred at a time as they are asked
    for.  With an ``AsyncQueueSession``, write ``async for job in session.predecessors(Job)``.
    """
    session, spec = session_of(session), flow_spec(entity)
    if of is None and (job := running.get(None)) is None:
        raise ArgumentError("predecessors() is called outside of a handler: give the task, of=task")
    own, identity = row_of(job.claim if of is None else of)
    latches = Latches.of(session, flow_spec(own.entity))
    rows = latches.adapter.rows
    named = within(session, own, [own.key(identity)])
    (awaited,) = rows.values(session, own, named, [own["waits_for"]]) or [None]
    if awaited is None:
        return iter(())
    chosen = rows.one_of(spec, spec["reports_to"], [*_below(latches, [awaited])])
    asked = select(*spec.primary_key).select_from(spec.mapper.persist_selectable)
    asked = asked.where(only(spec, *within(session, spec, (chosen, *where)))).order_by(*spec.primary_key)
    keys = rows.keys(session, spec, asked)
    parts = (keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE))
    return (task for some in parts for task in rows.load(session, spec, some))


# -- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How far a batch is."""

    key: str
    created_at: datetime
    opened_at: datetime | None
    """When it was seen that all members had ended; ``None`` before."""
    broken_at: datetime | None
    """When it was seen that a member had failed."""
    sealed: bool
    """Whether it takes no further members, except from its own."""
    unfinished: int
    completed: int
    discarded: int
    cancelled: int
    skipped: int
    """How many members were not needed: they wait for a failure, and there was none."""

    @property
    def total(self) -> int:
        """The number of all members."""
        return self.unfinished + self.completed + self.failed + self.skipped

    @property
    def failed(self) -> int:
        """The number of members that were discarded or cancelled."""
        return self.discarded + self.cancelled


def progress(session: AnySession, entity: type[QueueMixin], key: str) -> BatchProgress | None:
    """Return how far a batch is, or ``None`` if there is none with this key.

    ``entity``: a model of the queues with which it shares the table of latches.  Of a batch that has ended, the figures
    were stored then.  Before, an index finds the members, which are counted.  A session with criteria or row-level
    security always counts, only the members that it sees, and finds no batch without one.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    row = _batch(latches, key)
    if row is None:
        return None
    sees_all = not any(is_restricted(session, latches.adapter, each) for each in latches.flows.values())
    if row.opened_at is not None and sees_all:
        return _progress(row, {name: getattr(row, name) for name in OUTCOMES})
    counts = Counter[str]()
    for _, states in _groups(latches, [*_below(latches, [key])]):
        for name, number in states.items():
            counts[name if name in OUTCOMES else "unfinished"] += number
    return _progress(row, counts) if sees_all or counts else None


def _batch(latches: Latches, key: str) -> Any:
    c = latches.c
    names = ("id", "created_at", "opened_at", "broken_at", "sealed", *OUTCOMES)
    asked = select(*(c[name] for name in names)).where(c.id == check_key(key), c.sealed != EVENT)
    return latches.adapter.rows.execute(latches.session, latches.spec, asked).one_or_none()


def _progress(row: Any, counts: Mapping[str, int]) -> BatchProgress:
    return BatchProgress(**_facts(row, **{name: counts.get(name) or 0 for name in ("unfinished", *OUTCOMES)}))


def _facts(row: Any, **numbers: int) -> dict[str, Any]:
    moments = {name: getattr(row, name) for name in ("created_at", "opened_at", "broken_at")}
    return {"key": row.id, "sealed": row.sealed == SEALED, **moments, **numbers}


class _Group(NamedTuple):
    """Tasks of one queue that report to the same latch, and wait for the same one."""

    spec: QueueSpec
    reports_to: str
    waits_for: str | None
    when: str | None
    function: str | None


def _groups(latches: Latches, ids: Collection[str]) -> list[tuple[_Group, Counter[str]]]:
    """Return the tasks that report to these latches, in groups, with their number in each state."""
    found = defaultdict[_Group, Counter[str]](Counter)
    for spec in latches.flows.values():
        columns = [spec[role] for role in ("reports_to", "waits_for", "waits_when", "status")]
        function = [spec["task"]] if "task" in spec.columns else []
        chosen = latches.adapter.rows.one_of(spec, spec["reports_to"], list(ids))
        asked = select(func.count(), *columns, *function).select_from(spec.mapper.persist_selectable)
        asked = asked.where(only(spec, *within(latches.session, spec, (chosen,)))).group_by(*columns, *function)
        for number, latch, awaited, when, status, *named in _read(latches, spec, asked):
            group = _Group(spec, latch, awaited, _condition(awaited, when), *(named or [None]))
            found[group][_state(status, when)] += number
    return list(found.items())


def _state(status: str, when: str | None) -> str:
    return SKIPPED if when == SKIPPED and status in FINAL else status


def _condition(awaited: str | None, when: str | None) -> str | None:
    """Return what a task has waited for, whatever became of it."""
    return None if awaited is None else FAILED if when == SKIPPED else when or COMPLETED


# -- lists of batches -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo:
    """A batch in a list."""

    key: str
    created_at: datetime
    opened_at: datetime | None
    broken_at: datetime | None
    sealed: bool
    unfinished: int
    """How many members are not final."""
    failed: int
    """How many members were discarded or cancelled, as far as it has been seen that one was."""


def batches(session: AnySession, entity: type[QueueMixin], *, ended: bool = False, limit: int = 100) -> list[BatchInfo]:
    """Return batches: those that have not ended, the oldest first, then if ``ended`` the others, the last to end first.

    ``entity``: a model of the queues with which they share the table of latches.  Counts the unfinished members by an
    index.  Refused in sessions with criteria or row-level security.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    refuse_if_restricted(session, latches.adapter, spec, "batches()")
    c = latches.c
    names = ("id", "created_at", "opened_at", "broken_at", "sealed", "discarded", "cancelled")
    asked = select(*(c[name] for name in names))
    asked = asked.where(c.sealed != EVENT, c.id.not_like(f"%{PART}%")).limit(count("limit", limit))
    closed = _read(latches, spec, asked.where(c.opened_at.is_(None)).order_by(c.created_at))
    opened: Sequence[Any] = ()
    if ended and len(closed) < limit:
        last = asked.where(c.opened_at.is_not(None)).order_by(c.opened_at.desc())
        opened = _read(latches, spec, last.limit(limit - len(closed)))
    unfinished = _ends(latches, [row.id for row in closed], lambda each: each["finished_at"].is_(None))
    failed = _ends(latches, [row.id for row in closed if row.broken_at is not None], has_failed)
    failed.update({row.id: (row.discarded or 0) + (row.cancelled or 0) for row in opened})
    every = (*closed, *opened)
    return [BatchInfo(**_facts(row, unfinished=unfinished[row.id], failed=failed[row.id])) for row in every]


def _ends(latches: Latches, keys: Sequence[str], criterion: Any) -> Counter[str]:
    """Return how many members of each batch satisfy a criterion."""
    found = Counter[str]()
    if not keys:
        return found
    below, owners = _below(latches, keys), dict[str, str]()
    for key in keys:
        todo = [key]
        while todo:
            owners[todo[-1]] = key
            todo += [each for each in below[todo.pop()] if each not in owners]
    for spec in latches.flows.values():
        chosen = latches.adapter.rows.one_of(spec, spec["reports_to"], list(owners))
        asked = select(spec["reports_to"], func.count()).where(only(spec, chosen, criterion(spec)))
        for latch, number in _read(latches, spec, asked.group_by(spec["reports_to"])):
            found[owners[latch]] += number
    return found


# -- graphs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A node of a graph: a task; several tasks with the same predecessors and successors; or an event or another batch
    that is in the batch, or that a task waits for."""

    name: str
    """A short name within the graph."""
    label: str
    entity: type[QueueMixin] | None
    """The model of the tasks; ``None`` for an event or a batch."""
    identity: Identity | None
    """The primary key of a single task."""
    key: str | None
    """The key of an event or a batch."""
    states: Mapping[str, int]
    """The number of tasks in each state, in which ``skipped`` is one; of an event or a batch, ``open``, ``closed`` or
    ``broken``."""
    is_callback: bool = False
    """Whether it is no member, but waits for the whole batch."""


class FlowEdge(NamedTuple):
    """The tasks of ``target`` wait for those of ``source``."""

    source: str
    target: str
    when: str
    """Until these are ``completed``, one of them has ``failed``, or they are ``final``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The tasks of a batch, and what waits for what."""

    key: str
    nodes: Sequence[FlowNode]
    edges: Sequence[FlowEdge]
    left_out: int
    """The number of tasks that are not shown, because there would be more than 200 nodes.  Failed and running ones are
    shown first."""

    @property
    def layers(self) -> list[list[FlowNode]]:
        """The nodes by the length of the longest path to them."""
        before = defaultdict[str, list[str]](list)
        for edge in self.edges:
            before[edge.target].append(edge.source)
        depths: dict[str, int] = {}
        todo = [node.name for node in reversed(self.nodes)]
        while todo:
            missing = [each for each in before[todo[-1]] if each not in depths]
            if missing:
                todo += missing
            else:
                name = todo.pop()
                depths[name] = max((depths[each] + 1 for each in before[name]), default=0)
        found: list[list[FlowNode]] = [[] for _ in {*depths.values()}]
        for node in self.nodes:
            found[depths[node.name]].append(node)
        return found

    def mermaid(self) -> str:
        """Return the graph as a flowchart in the language of Mermaid."""
        lines = ["flowchart LR"]
        for node in self.nodes:
            states = ", ".join(f"{number:,} {name}" for name, number in node.states.items())
            told = next(iter(node.states)) if sum(node.states.values()) == 1 else states
            left, right = ("([", "])") if node.entity is None else ("[", "]")
            lines.append(f'    {node.name}{left}"{_quoted(node.label)}<br/>{told}"{right}')
        for edge in self.edges:
            condition = "" if edge.when == COMPLETED else f"|{edge.when}|"
            lines.append(f"    {edge.source} -->{condition} {edge.target}")
        if self.left_out:
            lines.append(f'    more["{self.left_out:,} more tasks are not shown"]')
        return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return ``text`` so that Mermaid shows it as it is."""
    return re.sub(r"[^\w ,.:()/-]", lambda found: f"#{ord(found[0])};", text)


def graph(session: AnySession, entity: type[QueueMixin], key: str) -> Graph | None:
    """Return the tasks of a batch, its callbacks among them, and what waits for what; ``None`` if there is no such
    batch.

    ``entity``: a model of the queues with which it shares the table of latches.  More than 12 tasks that wait for the
    same and for which the same waits are one node, with the number of tasks in each state; at most 200 nodes are
    returned, and the tasks of others are counted.  Indexes find the tasks, all of which are counted.  A session with
    criteria or row-level security shows the tasks that it sees, and no batch without one.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    return None if _batch(latches, key) is None else _Drawing(latches, key).graph()


class _Drawing:
    """A graph that is being made."""

    def __init__(self, latches: Latches, key: str) -> None:
        self._latches = latches
        self._key = key
        members = _below(latches, [key], through=False)
        self._groups = dict(_groups(latches, [*members, f"{key}{THEN}"]))
        awaited = {each.waits_for for each in self._groups if each.waits_for is not None}
        others = _below(latches, [each for each in awaited if PART in each and each not in members], through=False)
        outside = others.keys() - members.keys()  # the latches of tasks that are in no batch
        if outside:
            self._groups.update(_groups(latches, outside))
        self._below = {**members, **others}
        named = [*awaited, *(each for parts in self._below.values() for each in parts)]
        self._keys = sorted({each for each in named if PART not in each} - {key})
        self._inner = {each for parts in members.values() for each in parts}

    def graph(self) -> Graph | None:
        """Return the graph; ``None`` if the session sees no task of it."""
        session, adapter = self._latches.session, self._latches.adapter
        if not self._groups and any(is_restricted(session, adapter, each) for each in self._latches.flows.values()):
            return None
        number, shown = len(self._keys), list[_Group]()
        for group in sorted(self._groups, key=lambda each: (_urgency(self._groups[each]), _place(each))):
            size = self._groups[group].total()
            if number + (size if size <= LARGEST_GROUP else 1) <= MOST_NODES:
                number += size if size <= LARGEST_GROUP else 1
                shown.append(group)
        shown.sort(key=_place)
        self._by_latch = defaultdict[str, list[FlowNode]](list)
        self._number = 0
        for key, state in self._states_of_keys():
            self._add(key, label=key, key=key, states={state: 1})
        by_group = dict(zip(shown, map(self._draw, shown, self._tasks(shown)), strict=True))
        left_out = sum(states.total() for group, states in self._groups.items() if group not in by_group)
        nodes = [node for found in self._by_latch.values() for node in found]
        return Graph(key=self._key, nodes=nodes, edges=self._edges(by_group), left_out=left_out)

    def _add(self, latch: str, **values: Any) -> FlowNode:
        self._number += 1
        node = FlowNode(name=f"n{self._number}", **{"entity": None, "identity": None, "key": None, **values})
        self._by_latch[latch].append(node)
        return node

    def _states_of_keys(self) -> Iterator[tuple[str, str]]:
        c, rows, spec = self._latches.c, self._latches.adapter.rows, self._latches.spec
        if self._keys:
            asked = select(c.id, c.opened_at, c.broken_at).where(rows.one_of(spec, c.id, self._keys)).order_by(c.id)
            for key, opened, broken in _read(self._latches, spec, asked):
                yield key, "broken" if broken is not None else "closed" if opened is None else "open"

    def _tasks(self, groups: Sequence[_Group]) -> Iterator[list[Any]]:
        """Yield the tasks of each group that is small."""
        found = defaultdict[_Group, list[Any]](list)
        small = [each for each in groups if self._groups[each].total() <= LARGEST_GROUP]
        for spec in {each.spec: None for each in small}:
            latch, awaited, when, status = (spec[r] for r in ("reports_to", "waits_for", "waits_when", "status"))
            chosen = or_(*(and_(latch == g.reports_to, awaited == g.waits_for) for g in small if g.spec is spec))
            columns = (latch, awaited, when, status, spec["task"] if "task" in spec.columns else null())
            asked = select(*columns, *spec.primary_key).select_from(spec.mapper.persist_selectable)
            asked = asked.where(only(spec, *within(self._latches.session, spec, (chosen,)))).order_by(*spec.primary_key)
            for reports, waits, cause, state, function, *key in _read(self._latches, spec, asked):
                group = _Group(spec, reports, waits, _condition(waits, cause), function)
                found[group].append((tuple(key), _state(state, cause)))
        return iter([found[each] for each in groups])

    def _draw(self, group: _Group, tasks: Iterable[Any]) -> list[FlowNode]:
        values = {"entity": group.spec.entity, "is_callback": group.waits_for == self._key}
        name, latch = group.function or group.spec.entity.__name__, group.reports_to
        states = self._groups[group]
        if states.total() > LARGEST_GROUP:
            return [self._add(latch, label=f"{states.total():,} tasks of {name}", states=dict(states), **values)]
        return [
            self._add(latch, label=f"{name} {key_text(key)}", identity=key, states={state: 1}, **values)
            for key, state in tasks
        ]

    def _edges(self, by_group: Mapping[_Group, Sequence[FlowNode]]) -> list[FlowEdge]:
        found = [
            FlowEdge(source.name, target.name, group.when or COMPLETED)
            for group, nodes in by_group.items()
            if group.waits_for not in (None, self._key)
            for latch in self._sources(str(group.waits_for))
            for source in self._by_latch[latch]
            for target in nodes
        ]
        inner = [node for group, nodes in by_group.items() if group.reports_to in self._below for node in nodes]
        inner += [node for key in self._keys if key in self._inner for node in self._by_latch[key]]
        ends = [each for each in inner if each.name not in {edge.source for edge in found}]
        callbacks = ((group, nodes) for group, nodes in by_group.items() if group.waits_for == self._key)
        return found + [
            FlowEdge(source.name, target.name, group.when or COMPLETED)
            for group, nodes in callbacks
            for target in nodes
            for source in ends
        ]

    def _sources(self, latch: str) -> Iterable[str]:
        found, todo = dict[str, None](), [latch]
        while todo:
            each = todo.pop()
            found[each] = None
            todo += [part for part in self._below.get(each, ()) if part not in found]
        return found


def _urgency(states: Counter[str]) -> int:
    """Return the order in which groups are shown: failures first, then what runs or could, what waits, and the rest."""
    failed, ended = states["discarded"] + states["cancelled"], states["completed"] + states["skipped"]
    return 0 if failed else 1 if states.total() > ended + states["waiting"] else 2 if states["waiting"] else 3


def _place(group: _Group) -> tuple[Any, ...]:
    """Return a place in an order in which tasks that were added earlier come first."""
    parts = (re.split(r"(\d+)", key or "") for key in (group.waits_for, group.reports_to))
    numbers = ([(each.isdigit(), int(each) if each.isdigit() else 0, each) for each in key] for key in parts)
    return (*numbers, group.spec.name, group.when or "", group.function or "")
