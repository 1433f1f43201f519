"""Batches and workflows: tasks that belong together, and tasks that wait for the ends of others."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, overload

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from .._support.errors import ArgumentError
from ..model.declaration import QueueMixin
from ..queue.options import Status
from ..queue.spec import QueueSpec
from ..sql import NEVER
from ..transaction import Access, AnySession, session_of
from .enqueueing import EnqueueOptions, check_new, check_rows, dictionaries, enqueue
from .latches import ANY, EVENT, SEALED, UNSEALED, Latches, announce_look
from .placing import PART, THEN, Awaited, Place, When, check_key, check_when, flow_spec, new_key

T = TypeVar("T", bound=QueueMixin)


@dataclass(eq=False)
class TaskGroup:
    """Tasks that one call has added to a batch, for ``after=``."""

    spec: QueueSpec
    tasks: Sequence[Any]
    """Instances, or rows by attribute name."""
    is_bulk: bool
    after: Collection[TaskGroup]
    when: str
    copy: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    """The attributes that its place in the batch gives to the tasks."""


Predecessor: TypeAlias = "QueueMixin | TaskGroup"


class TaskBatch:
    """The members of a batch that is being made, see :func:`.batch`.  Sends nothing."""

    def __init__(self, key: str, *, sealed: bool, into: Awaited | None) -> None:
        self.key = key
        """The key, given or made."""
        self._sealed = SEALED if sealed else UNSEALED
        self._into = into
        self._members: dict[TaskGroup, int] = {}
        """With their positions."""
        self._callbacks: list[TaskGroup] = []
        self._by_task: dict[int, TaskGroup] = {}
        self._is_open = True

    @overload
    def add(self, task: T, /, *, after: Predecessor | Iterable[Predecessor] = (), when: When = ...) -> T: ...
    @overload
    def add(
        self,
        entity: type[QueueMixin],
        rows: Iterable[Mapping[str, Any]],
        /,
        *,
        after: Predecessor | Iterable[Predecessor] = (),
        when: When = ...,
        copy: bool = ...,
    ) -> TaskGroup: ...
    def add(
        self,
        task: Any,
        rows: Iterable[Mapping[str, Any]] | None = None,
        /,
        *,
        after: Any = (),
        when: When = "completed",
        copy: bool = False,
    ) -> Any:
        """Add a task, which is returned, or a model and rows as dictionaries, which are inserted in bulk and returned
        as a group that others can be ``after``; ``copy=True`` loads them with PostgreSQL's COPY.

        ``after``: tasks and groups of this batch that must end before.  ``when``: if all of them are ``"completed"``;
        or as soon as one of them has ``"failed"``, which is to be discarded or cancelled; or once all of them are
        ``"final"``, whatever happened.  A task that waits for a success that cannot come is cancelled with an error
        that says why; one that waits for a failure that cannot come is cancelled without an error, and counts as
        skipped.

        Raises :class:`.ArgumentError` for predecessors that are not in this batch, so that there are no cycles, and for
        ``when`` without ``after``.
        """
        predecessors = [self._known(each) for each in _listed(after)]
        group = self._group(task, rows, when, copy=copy, after=predecessors)
        if when != "completed" and not predecessors:
            raise ArgumentError(f"when={when!r} is for tasks that wait: give after=")
        self._members[group] = len(self._members)
        return task if rows is None else group

    def then(self, task: T, /, *, when: When = "completed") -> T:
        """Add a task that starts if all members are ``"completed"``; or as soon as one of them has ``"failed"``; or
        once all are ``"final"``, see :meth:`add`.  It is no member itself.  Returns the task."""
        self._callbacks.append(self._group(task, None, when))
        return task

    def _group(
        self, task: Any, rows: Any, when: str, *, copy: bool = False, after: Sequence[TaskGroup] = ()
    ) -> TaskGroup:
        if not self._is_open:
            raise ArgumentError(f"the block of the batch {self.key!r} has ended")
        if rows is None and isinstance(task, type):
            raise ArgumentError(f"add({task.__name__}, rows): the rows are missing")
        check_when(when)
        spec = flow_spec(task if rows is not None else type(task))
        if rows is not None:
            tasks: list[Any] = dictionaries(rows)
            options = EnqueueOptions(on_conflict="raise", version=None, delay=None, expires=None, copy=copy)
            check_rows(spec, [dict(row) for row in tasks], options)
            if any(row.get(spec.attributes["status"]) or row.get(spec.attributes["available_at"]) for row in tasks):
                raise ArgumentError(_OWN_TIME)
            return TaskGroup(spec, tasks, True, after, when, copy)
        if id(task) in self._by_task:
            raise ArgumentError(f"{task!r} is in this batch already")
        group = self._by_task[id(task)] = TaskGroup(spec, [task], False, after, when)
        return group

    def _known(self, given: object) -> TaskGroup:
        group = given if isinstance(given, TaskGroup) else self._by_task.get(id(given))
        if group is None or group not in self._members:
            raise ArgumentError(f"after={given!r}: give tasks and groups that were added to this batch before")
        return group

    # -- at the end of the block: compiles the graph to latches, and inserts these and the tasks

    def _insert(self, session: Session, *, is_named: bool) -> None:
        self._is_open = False
        groups = [*self._members, *self._callbacks]
        if not groups and is_named:
            raise ArgumentError(f"the batch {self.key!r} has no task yet: name a model, with add(Page, [])")
        if not groups:
            return
        if len({each.spec.table.metadata for each in groups}) > 1:
            raise ArgumentError("the models of a batch must have the same MetaData: their latches are in one table")
        for group in groups:
            if not group.is_bulk:
                check_new(session, group.spec, group.tasks)
        rows, spec = self._compiled(), groups[0].spec
        latches = Latches.of(session, spec, Access.CHANGE)
        if self._into is not None:
            members = {ANY, *(each.spec.name for each in self._callbacks)}
            place = Place(latches, spec)
            rows[0]["reports_to"] = outer = place.join(place.batch_of(self._into), members, self._into)
            for group in self._callbacks:
                group.values["reports_to"] = outer
        latches.insert(rows)
        tasks = _enqueue(session, groups)
        if any(group.tasks for group in self._members) or self._sealed == UNSEALED:
            return
        if self._into is not None:
            announce_look(session, spec)  # this transaction may not see all members of the outer batch
            return
        latches.open([self.key])
        for task in tasks:
            session.refresh(task)

    def _compiled(self) -> list[dict[str, Any]]:
        """Return the rows of latches, and set the values of the groups.

        Each distinct set of predecessors is a latch.  A group reports to the latch of its set if that is the only one
        with any of its groups, and otherwise to a latch of its own, to which links lead from its sets.
        """
        latches = {self.key: {**_latch(self.key), "sealed": self._sealed}}
        sets: dict[frozenset[int], str] = {}
        uses: dict[int, list[frozenset[int]]] = {}
        for group in self._members:
            wanted = frozenset(self._members[each] for each in group.after)
            if wanted and wanted not in sets:
                sets[wanted] = f"{self.key}{PART}{len(sets)}"
                for number in wanted:
                    uses.setdefault(number, []).append(wanted)
            if wanted:
                self._wait(latches, group, sets[wanted])
        for wanted, key in sets.items():
            is_alone = len(wanted) == 1 or all(len(uses[number]) == 1 for number in wanted)
            latches.setdefault(key, _latch(key))["reports_to"] = self.key if is_alone else None
            if is_alone:
                latches[self.key]["members"].add(ANY)
        for group, number in self._members.items():
            self._report(latches, group, number, [(sets[each], len(each) == 1) for each in uses.get(number, ())])
        for group in self._callbacks:
            self._wait(latches, group, self.key)
            group.values["reports_to"] = f"{self.key}{THEN}"
        return [{**row, **{name: sorted(row[name]) for name in ("members", "waiters")}} for row in latches.values()]

    def _report(
        self, latches: dict[str, dict[str, Any]], group: TaskGroup, number: int, sets: Sequence[tuple[str, bool]]
    ) -> None:
        """Let the tasks of a group report to the batch, to the latch of their set, or to one of their own."""
        own = next((key for key, is_single in sets if is_single), None)
        if not sets:
            key = self.key
        elif len(sets) == 1 and latches[sets[0][0]]["reports_to"] is not None:
            key = sets[0][0]
        else:
            key = own or f"{self.key}{PART}t{number}"
            latches.setdefault(key, _latch(key))["reports_to"] = self.key
            latches[self.key]["members"].add(ANY)
            for target, _ in sets:
                if target != key:
                    link = f"{target}{PART}{number}"
                    latches[link] = {**_latch(link), "reports_to": target, "waits_for": key}
                    latches[key]["waiters"].add(ANY)
                    latches[target]["members"].add(ANY)
        latches[key]["members"].add(group.spec.name)
        group.values["reports_to"] = key

    def _wait(self, latches: dict[str, dict[str, Any]], group: TaskGroup, key: str) -> None:
        names = [group.spec.attributes[role] for role in ("status", "available_at")]
        if not group.is_bulk and any(instance_state(task).dict.get(name) for task in group.tasks for name in names):
            raise ArgumentError(_OWN_TIME)
        latches.setdefault(key, _latch(key))["waiters"].add(group.spec.name)
        group.values |= {"waits_for": key, "waits_when": group.when}
        group.values |= {"status": Status.WAITING.value, "available_at": NEVER}


def _enqueue(session: Session, groups: Iterable[TaskGroup]) -> list[Any]:
    """Enqueue the tasks of groups, each at its place; return those that are instances."""
    tasks: list[Any] = []
    for group in groups:
        values = {group.spec.attributes[role]: value for role, value in group.values.items()}
        if group.is_bulk:
            for start in range(0, len(group.tasks), _CHUNK):
                some = [{**row, **values} for row in group.tasks[start : start + _CHUNK]]
                enqueue(session, group.spec.entity, some, copy=group.copy)
            continue
        for task in group.tasks:
            for name, value in values.items():
                setattr(task, name, value)
        tasks += group.tasks
    enqueue(session, tasks)
    return tasks


_OWN_TIME = "rows of a batch, and tasks that wait, have no status and no time of their own: these depend on others"
_CHUNK = 10_000
"""The number of rows that one statement inserts."""


def _latch(key: str) -> dict[str, Any]:
    return {"id": key, "reports_to": None, "waits_for": None, "sealed": SEALED, "members": set(), "waiters": set()}


def _listed(given: Any) -> list[Any]:
    if isinstance(given, (QueueMixin, TaskGroup)) or not isinstance(given, Iterable) or isinstance(given, str):
        return [given]
    return list(given)


@contextmanager
def batch(
    session: AnySession, key: str | None = None, *, sealed: bool = True, into: Awaited | None = None
) -> Generator[TaskBatch]:
    """Enqueue tasks that belong together, at the end of the block and in the session's transaction.

    >>> with Session.begin() as session, session.batch("import 7") as batch:
    ...     batch.add(Page, [{"url": url} for url in urls])
    ...     batch.then(Report(name="import 7"))

    Their models derive from :class:`.FlowMixin`, of one ``MetaData`` with one model of :class:`.LatchMixin`.  ``key``
    is the batch's name, unique among all batches, of at most 180 characters and without a slash; without one, a key is
    made.  The tasks of :meth:`.TaskBatch.then` start when the others have ended, and each of them exactly once, however
    many workers end the last members at the same time.  Without members, the batch has ended at once; one with a key
    needs at least ``add(Page, [])``, by which its table is known.

    ``sealed=False``: it takes further members, from ``enqueue(..., into=key)``, until :func:`seal`, and cannot end
    before.  ``into``: the key of another batch that has not ended, or a task that is in one, such as the one that the
    handler runs: this batch is a member of that one, and so are its callbacks.

    Raises :class:`.DuplicateTaskError` at the end of the block if there is such a key already, and
    :class:`.BatchClosedError` if the outer batch has ended.
    """
    session = session_of(session)
    if key is None and not sealed:
        raise ArgumentError("sealed=False needs a key, by which the batch is sealed")
    made = TaskBatch(new_key() if key is None else check_key(key), sealed=sealed, into=into)
    yield made
    made._insert(session, is_named=key is not None)


def seal(session: AnySession, entity: type[QueueMixin], key: str) -> bool:
    """Let a batch that was made with ``sealed=False`` end: it has all its members, in this transaction or before.
    Returns false if it is sealed already.

    Its callbacks start when its members have ended, or soon after the commit if they have.  A running member can still
    add others (``into=``).  ``entity``: a model of the queues with which it shares the table of latches.

    Raises :class:`.ArgumentError` if there is no such batch.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec, Access.CHANGE)
    rows = latches.hold([check_key(key)])
    if not rows or rows[0].sealed == EVENT:
        raise ArgumentError(f"there is no batch {key!r}")
    if rows[0].sealed == SEALED:
        return False
    latches.change([key], sealed=SEALED)
    announce_look(session, spec)  # which sees what this transaction's snapshot may not show
    return True
