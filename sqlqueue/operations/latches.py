"""Latches: looks at those whose members may have ended, opens them, and releases what waits for them.

Nobody counts while members end.  A latch opens when a statement that begins after its row is locked shows no unfinished
member, so two last members cannot miss each other, and settling sends, writes and locks nothing for it.  Whoever adds a
member, or makes one available again, locks the row as well.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .._support.checks import count, duration
from .._support.errors import ArgumentError, DuplicateTaskError
from .._support.texts import key_text
from ..dialects.base import Adapter
from ..lifecycle.transitions import end_assignments, error_assignments, revive_assignments
from ..model.companions import OUTCOMES, LatchMixin, LatchTable, latches_in, latches_of, missing_companion
from ..model.declaration import QueueMixin, queues
from ..queue.options import FINAL, Status
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..sql import Assignment, is_waiting, state, utcnow, write
from ..transaction import Access, AnySession, announce, open_, refuse_if_restricted, reread, session_of
from .conflicts import translating, warn_of_taken, with_free_keys

MOST = 500
"""The maximum number of latches that a statement names."""
LATE = timedelta(hours=1)
"""For how long after the opening of latches a sweep searches for tasks that still wait for them."""
ANY = "*"
"""Stands for latches among the tables of members and waiters."""
COMPLETED, FAILED, WHENEVER, SKIPPED = "completed", "failed", "final", "skipped"
"""The values of ``waits_when``."""
EVENT, SEALED, UNSEALED = 0, 1, 2
"""The values of ``sealed``: somebody opens it; its members do, when they have ended; they do once it is sealed."""
NOT_RUN = "not run: "
"""The beginning of the error of a task that was cancelled because of another one."""
_ONE: ColumnElement[int] = literal_column("1")


class Ended(NamedTuple):
    """A latch that a look has opened."""

    key: str
    counts: Mapping[str, int]
    """How its members have ended."""


class Look(NamedTuple):
    """What a look has done."""

    opened: int
    """How many latches it has opened."""
    left: frozenset[str] = frozenset()
    """Those to look at again in another transaction: others have locked them, or may have opened their members."""
    ended: Sequence[Ended] = ()
    """Those that it has opened."""


@dataclass(frozen=True, eq=False)
class Latches:
    """The latches of a ``MetaData``, in a session's transaction."""

    session: Session
    adapter: Adapter
    spec: QueueSpec
    """A queue through which the session reaches them."""
    model: LatchTable

    @classmethod
    def of(cls, session: Session, spec: QueueSpec, access: Access = Access.READ) -> Latches:
        """Raise :class:`.ConfigurationError` if the application has no model of them."""
        found = latches_in(spec.table.metadata)
        if found is None:
            raise missing_companion(LatchMixin, spec, f"{spec.entity.__name__} cannot have batches")
        return cls(session, open_(session, spec, access), spec, found)

    @cached_property
    def c(self) -> Any:
        """The columns of the table."""
        return self.model.table.c

    @cached_property
    def flows(self) -> dict[str, QueueSpec]:
        """The queues whose tasks can have latches, by table."""
        found = (each for each in queues(self.spec.table.metadata) if each.has_latches)
        return {each.name: each for each in reversed([*found])}  # a class comes before its subclasses

    def _execute(self, statement: Any, parameters: Any = None) -> Any:
        return self.adapter.rows.execute(self.session, self.spec, statement, parameters)

    def _made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the statement that ``make`` builds, once: building it takes longer than a look at a few latches."""
        return self.spec.made.get((self.adapter.rows, *self.flows.values(), key), make)

    def read(self, spec: QueueSpec, statement: Any) -> Any:
        """Return the rows of a statement on the table of a queue."""
        return self.adapter.rows.execute(self.session, spec, statement).all()

    @cached_property
    def _may_miss(self) -> bool:
        """Whether a plain SELECT may not show what has been committed before this transaction locked a latch."""
        return self.adapter.connections.may_change_unseen(self.session.connection(self.spec.bind_arguments))

    def _latest(self, spec: QueueSpec, index: str, reading: Any, *, skips: bool = False) -> Any:
        """Return ``reading``, which reads ranges of an index, so that it shows what is committed now, whatever the
        transaction's snapshot; ``skips``: without rows that others have locked."""
        if not self._may_miss:
            return reading
        hinted = self.adapter.rows.probing(spec, spec.index_name(index), reading)
        return hinted.with_for_update(skip_locked=skips)

    def _latest_latches(self, reading: Any) -> Any:
        return self._execute(reading.with_for_update(read=True) if self._may_miss else reading)

    def change(self, ids: Collection[str], **values: Any) -> None:
        """Write to latches, by column."""
        for some in _parts(ids):
            writing = update(self.model.table).where(self.c.id.in_(some)).values(**values)
            self._execute(self.adapter.rows.writing(self.model.table, writing))

    # -- finds latches to look at, without locks

    def begin(self) -> None:
        """Prepare a transaction that only looks: planners must not scan the members of a latch to find the first."""
        self.adapter.rows.begin_look(self.session, self.spec)

    def ripe(self, among: Collection[str] | None) -> list[str]:
        """Return closed latches without unfinished members: of ``among``, or of all, 500 at most."""
        if among is None:
            return list(self._execute(self._made("ripe", lambda: self._ripe().limit(MOST))).scalars())
        found = self._made("ripe among", lambda: self._ripe().where(self.c.id.in_(bindparam("among", expanding=True))))
        return [key for some in _parts(among) for key in self._execute(found, {"among": some}).scalars()]

    def _ripe(self) -> Select[Any]:
        latch = self.model.table
        blocked = [
            self._probe(spec, spec["reports_to"] == latch.c.id, spec["finished_at"].is_(None))
            for spec in self.flows.values()
        ]
        blocked += self._probes_of_latches(lambda other: other.c.opened_at.is_(None))
        closed = (latch.c.opened_at.is_(None), latch.c.sealed == SEALED)
        return select(latch.c.id).where(*closed, *(x.is_(None) for x in blocked))

    def failing(self, since: timedelta | None) -> set[str]:
        """Return closed latches with a member that has failed, ``since`` that time if given, and do not show it."""
        statement = self._made(("failing", since), partial(self._failing, since))
        return set(self._execute(statement).scalars())

    def _failing(self, since: timedelta | None) -> Select[Any]:
        latch = self.model.table
        ways = [
            self._probe(
                spec,
                spec["reports_to"] == latch.c.id,
                spec["finished_at"].is_not(None) if since is None else spec["finished_at"] > utcnow(-since),
                has_failed(spec),
            )
            for spec in self.flows.values()
        ]
        ways += self._probes_of_latches(lambda other: other.c.broken_at.is_not(None))
        closed = (latch.c.opened_at.is_(None), latch.c.broken_at.is_(None), latch.c.sealed != EVENT)
        return select(latch.c.id).where(*closed, or_(*(x.is_not(None) for x in ways)))

    def late(self, since: timedelta | None) -> list[str]:
        """Return latches, opened ``since`` that time if given, for which tasks still wait: who opened them has not seen
        these, in an older snapshot or without their model."""
        return list(self._execute(self._made(("late", since), partial(self._late, since))).scalars())

    def _late(self, since: timedelta | None) -> Select[Any]:
        latch = self.model.table
        waits = [
            self._probe(spec, is_waiting(spec), spec["waits_for"] == latch.c.id, index="waits")
            for spec in self.flows.values()
        ]
        opened = latch.c.opened_at.is_not(None) if since is None else latch.c.opened_at > utcnow(-since)
        return select(latch.c.id).where(opened, or_(*(x.is_not(None) for x in waits))).limit(MOST)

    def unsealed(self, since: timedelta) -> list[str]:
        """Return batches that have not been sealed ``since`` that time, a few of them."""
        latch = self.model.table
        old = (latch.c.opened_at.is_(None), latch.c.sealed == UNSEALED, latch.c.created_at < utcnow(-since))
        return list(self._execute(select(latch.c.id).where(*old).limit(3)).scalars())

    def of_failed(self, tasks: Mapping[QueueSpec, Collection[Identity]]) -> set[str]:
        """Return the latches of those of ``tasks`` that have failed for good."""
        found, rows = set[str](), self.adapter.rows
        for spec, keys in tasks.items():
            for some in rows.batches(spec, list(keys)):
                asked = select(spec["reports_to"]).where(rows.key_in(spec, some), has_failed(spec))
                found.update(rows.execute(self.session, spec, rows.by_key(spec, asked)).scalars())
        return found

    def _probe(self, spec: QueueSpec, *criteria: Criterion, index: str = "reports") -> ColumnElement[Any]:
        return self._first(self.adapter.rows.probing(spec, spec.index_name(index), select(_ONE).where(*criteria)))

    def _probes_of_latches(self, criterion: Callable[[Any], Criterion]) -> list[ColumnElement[Any]]:
        """Return probes for a latch that is a member, and for the one that this one opens with."""
        latch, child, source = self.model.table, self.model.table.alias("child"), self.model.table.alias("source")
        ways = ((child.c.reports_to == latch.c.id, child), (source.c.id == latch.c.waits_for, source))
        return [self._first(select(_ONE).where(named, criterion(other))) for named, other in ways]

    def _first(self, found: Select[Any]) -> ColumnElement[Any]:
        """Return a subquery of one row.  Planners turn NOT EXISTS into joins that read all members."""
        return found.limit(1).correlate(self.model.table).scalar_subquery()

    # -- opens latches

    def open(self, todo: Collection[str]) -> Look:
        """Open those of ``todo`` that are ripe, and those that this makes ripe, level by level."""
        ended, left = list[Ended](), set[str]()
        while todo:
            found = self._lock(todo, self.c.opened_at.is_(None), skips=True)
            left.update(set(todo).difference(row.id for row in found))
            known = [row for row in found if self._knows(row)]
            counts = self._count(known)  # again, in statements of their own: only now can nobody add members
            ripe = [row for row in known if not counts[row.id]["unfinished"]]
            if not ripe:
                break
            groups = defaultdict[tuple[int, ...], list[str]](list)
            for row in ripe:
                groups[tuple(counts[row.id][name] for name in OUTCOMES)].append(row.id)
            for numbers, ids in groups.items():
                self.change(ids, opened_at=utcnow(), **dict(zip(OUTCOMES, numbers, strict=True)))
            failed = [row for row in ripe if row.broken_at is not None or _is_failing(counts[row.id])]
            late = [row for row in failed if row.broken_at is None]
            self.change([row.id for row in late], broken_at=utcnow())
            skipped = self.release([row for row in ripe if row not in failed])
            cancelled = self.fail(failed, early=False)
            ended += [Ended(row.id, {name: counts[row.id][name] for name in OUTCOMES}) for row in ripe]
            above = self.above(ripe) | skipped | cancelled
            left |= above | self.break_(self.above(late) | cancelled)
            todo = self.ripe(above)
        return Look(len(ended), frozenset(left), ended)

    def break_(self, latches: Collection[str]) -> set[str]:
        """Show that members of closed latches have failed: what waits for a failure starts, and what waits for success
        is cancelled, which breaks further latches.  Returns the latches above, to look at."""
        affected, todo = set[str](), set(latches)
        while todo:
            rows = self._lock(todo, self.c.opened_at.is_(None), self.c.broken_at.is_(None), skips=True)
            rows = [row for row in rows if self._knows(row)]
            if not rows:
                break
            self.change([row.id for row in rows], broken_at=utcnow())
            todo = self.above(rows) | self.fail(rows, early=True)
            affected |= todo
        return affected

    def _knows(self, row: Any) -> bool:
        """Return whether this process has the models of all members and waiters."""
        return {*row.members, *row.waiters} <= {ANY, *self.flows}

    def _lock(self, ids: Collection[str], *criteria: Criterion, skips: bool) -> list[Any]:
        names = ("id", "reports_to", "waits_for", "members", "waiters", "opened_at", "broken_at", "sealed")
        found: list[Any] = []
        for some in _parts(sorted(ids)):
            wanted: Any = select(*(self.c[name] for name in names)).where(self.c.id.in_(some), *criteria)
            found += self._execute(self.adapter.rows.locking(self.model.table, wanted, skips=skips)).all()
        return found

    def above(self, rows: Iterable[Any]) -> set[str]:
        """Return the latches that depend on these: those to which they report, and those that open with them."""
        rows = list(rows)
        found = {row.reports_to for row in rows if row.reports_to is not None}
        for some in _parts([row.id for row in rows if ANY in row.waiters]):
            found.update(self._latest_latches(select(self.c.id).where(self.c.waits_for.in_(some))).scalars())
        return found

    def _count(self, rows: Sequence[Any], *, ended: bool = False) -> dict[str, Counter[str]]:
        """Return how the members of these latches have ended, and, unless only the ``ended`` ones are needed, how many
        have not."""
        found: dict[str, Counter[str]] = {row.id: Counter() for row in rows}
        for name, spec in self.flows.items():
            columns = (spec["reports_to"], spec["status"], spec["waits_when"])
            for some in _parts([row.id for row in rows if name in row.members]):
                asked = select(*columns, func.count()).where(spec["reports_to"].in_(some)).group_by(*columns)
                latest = self._latest(spec, "reports", asked, skips=ended)
                for latch, status, when, number in self.read(spec, latest):
                    found[latch][shown_state(status, when) if status in FINAL else "unfinished"] += number
        sums = [func.sum(self.c[name]) for name in OUTCOMES]
        closed = func.count() - func.count(self.c.opened_at)
        for some in _parts([row.id for row in rows if ANY in row.members]):
            asked = select(self.c.reports_to, closed, *sums).where(self.c.reports_to.in_(some))
            for latch, *numbers in self._latest_latches(asked.group_by(self.c.reports_to)):
                _add(found[latch], numbers)
        sources = {row.waits_for: row.id for row in rows if row.waits_for is not None}
        for some in _parts(list(sources)):
            is_closed = case((self.c.opened_at.is_(None), _ONE), else_=literal_column("0"))
            asked = select(self.c.id, is_closed, *(self.c[name] for name in OUTCOMES)).where(self.c.id.in_(some))
            numbers = {source: values for source, *values in self._latest_latches(asked).all()}
            for row in rows:
                if row.waits_for in numbers and row.waits_for in some:
                    _add(found[row.id], numbers[row.waits_for])
        return found

    def reread(self) -> None:
        """Show in the instances of this session what has become of their tasks."""
        for spec in self.flows.values():
            reread(self.session, self.adapter, spec)

    # -- releases tasks that wait

    def catch_up(self, rows: Iterable[Any]) -> set[str]:
        """Release what waits for latches that are open, or broken, already; return the latches to look at."""
        affected = set[str]()
        for row in rows:
            if row.broken_at is None:
                affected |= self.release([row])
            else:
                ended = self.fail([row], early=row.opened_at is None)
                affected |= ended | self.break_(ended)
        return affected

    def release_late(self, ids: Collection[str]) -> set[str]:
        """Release what still waits for those of these latches that are open; return the latches to look at."""
        return self.catch_up(self._lock(ids, self.c.opened_at.is_not(None), skips=True))

    def release(self, rows: Sequence[Any]) -> set[str]:
        """Start what waits for the success of these latches; return the latches of tasks that are not needed."""
        ended = set[str]()
        for spec, ids in self.waiters(rows):
            self._start(spec, ids, COMPLETED, WHENEVER)
            ended |= self._end(spec, ids, FAILED, [(spec["waits_when"], SKIPPED)])
        return ended

    def fail(self, rows: Sequence[Any], *, early: bool) -> set[str]:
        """Start what waits for the failure of these latches, and cancel what waits for their success; return the
        latches of the latter.  ``early``: the latches are not open yet."""
        ended = set[str]()
        for spec, ids in self.waiters(rows):
            self._start(spec, ids, FAILED, *(() if early else (WHENEVER,)))
            for key in self._waited_for(spec, ids):
                ended |= self._end(spec, [key], COMPLETED, error_assignments(spec, f"{NOT_RUN}{self._culprit(key)}"))
        return ended

    def waiters(self, rows: Sequence[Any]) -> Iterator[tuple[QueueSpec, list[str]]]:
        """Yield the queues whose tasks may wait for these latches, with the keys of some of them."""
        for name, spec in self.flows.items():
            for some in _parts([row.id for row in rows if name in row.waiters]):
                yield spec, some

    def _start(self, spec: QueueSpec, ids: Collection[str], *whens: str) -> None:
        values = [(spec["status"], state(Status.AVAILABLE)), (spec["available_at"], utcnow())]
        waiting = _waits(spec, ids, *whens)
        if self._may_miss:
            started = sum(1 for _ in self._write(spec, waiting, is_waiting(spec), values))
        else:
            started = self.adapter.rows.sweep(self.session, spec, write(spec, waiting, values))
        if started:
            announce(self.session, spec)

    def _waited_for(self, spec: QueueSpec, ids: Collection[str]) -> list[str]:
        found = self._latest(spec, "waits", select(spec["waits_for"]).where(_waits(spec, ids, COMPLETED)))
        return list({key for (key,) in self.read(spec, found.distinct())})

    def _end(self, spec: QueueSpec, ids: Collection[str], when: str, marks: Sequence[Assignment]) -> set[str]:
        """Cancel waiting tasks; return the latches to which they report."""
        values = [*marks, *end_assignments(spec, Status.CANCELLED)]
        ended = self._write(spec, _waits(spec, ids, when), is_waiting(spec), values)
        return {latch for latch in ended if latch is not None}

    def _write(
        self, spec: QueueSpec, found: Criterion, still: Criterion, values: Sequence[Assignment]
    ) -> Iterator[str | None]:
        """Write to the rows that are ``found``, by key; return the latch to which each reports."""
        rows, width = self.adapter.rows, len(spec.primary_key)
        asked = select(*spec.primary_key, spec["reports_to"]).where(found)
        named = self.read(spec, self._latest(spec, "waits", asked))
        for some in rows.batches(spec, [tuple(row) for row in named]):
            keys = rows.key_in(spec, [row[:width] for row in some])
            with translating(self.adapter, spec):
                rows.count(self.session, spec, rows.by_key(spec, write(spec, and_(keys, still), values)))
            yield from (row[width] for row in some)

    def _culprit(self, key: str) -> str:
        """Return a text that names a failed member of a latch, or the task because of which that one was not run."""
        for spec in self.flows.values():
            facts = (*spec.primary_key, spec["status"], spec["error"])
            failed = select(*facts).where(spec["reports_to"] == key, has_failed(spec))
            for *identity, status, error in self.read(spec, failed.limit(1)):
                if status == Status.CANCELLED and (error or "").startswith(NOT_RUN):
                    return str(error).removeprefix(NOT_RUN)
                return f"{spec.entity.__name__} {key_text(tuple(identity))} was {status}"
        broken = select(self.c.id, self.c.waits_for).where(self.c.reports_to == key, self.c.broken_at.is_not(None))
        for part, source in self._execute(broken.limit(1)).all():
            return self._culprit(source or part)
        return "a task that it waits for has not been completed"

    # -- closes latches again, for members that are made available again

    def hold(self, ids: Collection[str]) -> list[Any]:
        """Lock latches, whatever their state, so that they open neither before nor while their members change; return
        their rows."""
        held = self._lock(ids, skips=False)
        # other nodes do not see the lock, and older snapshots not what it has protected, but two writes conflict
        self.change([row.id for row in held], changes=self.c.changes + _ONE)
        return held

    def reopen(self, ids: Collection[str]) -> None:
        """Close latches whose members are unfinished again, and those above; mend those without other failures, and
        let the tasks wait again that their failures had ended."""
        todo = set(ids)
        while todo:
            rows = self._lock(todo, or_(self.c.opened_at.is_not(None), self.c.broken_at.is_not(None)), skips=False)
            counts, broken = self._count(rows, ended=True), self._broken_below(rows)
            mended = [
                r for r in rows if r.broken_at is not None and not _is_failing(counts[r.id]) and r.id not in broken
            ]
            # of a latch that stays broken, a member that runs again changes nothing but that it is closed
            closed = [row for row in rows if row.opened_at is not None]
            self.change([row.id for row in closed], opened_at=null(), **dict.fromkeys(OUTCOMES, null()))
            self.change([row.id for row in mended], broken_at=null())
            changed = {row.id: row for row in (*closed, *mended)}
            # older snapshots still show the failures below those that stay broken, but two writes conflict
            kept = [row.id for row in rows if row.id not in changed and row.id not in ids]
            self.change(kept, changes=self.c.changes + _ONE)
            todo = self.above(changed.values())
            todo |= self._revive(mended, COMPLETED) | self._revive(closed, SKIPPED)

    def _broken_below(self, rows: Sequence[Any]) -> set[str]:
        """Return those of these latches of which a member, or what they stand for, is a broken latch."""
        found = set[str]()
        for some in _parts([row.id for row in rows if ANY in row.members]):
            broken = select(self.c.reports_to).where(self.c.reports_to.in_(some), self.c.broken_at.is_not(None))
            found.update(self._latest_latches(broken.distinct()).scalars())
        sources = {row.waits_for: row.id for row in rows if row.waits_for is not None}
        for some in _parts(list(sources)):
            broken = select(self.c.id).where(self.c.id.in_(some), self.c.broken_at.is_not(None))
            sick = set(self._latest_latches(broken).scalars())
            found.update(row.id for row in rows if row.waits_for in sick)
        return found

    def broken_links(self, links: Collection[str]) -> set[str]:
        """Return those of these latches whose sources are broken."""
        source = self.model.table.alias("source")
        found = select(self.c.id).where(self.c.waits_for == source.c.id, source.c.broken_at.is_not(None))
        return {key for some in _parts(links) for key in self._execute(found.where(self.c.id.in_(some))).scalars()}

    def _revive(self, rows: Sequence[Any], when: str) -> set[str]:
        above = set[Any]()
        for spec, ids in self.waiters(rows):
            gone = and_(spec["status"] == state(Status.CANCELLED), spec["attempt"] == literal_column("0"))
            found = and_(spec["waits_for"].in_(ids), spec["waits_when"] == when, gone)

            def revive(some: Criterion, spec: QueueSpec = spec, gone: Criterion = gone) -> int:
                above.update(self._write(spec, some, gone, revive_assignments(spec)))
                return len(above)

            _, taken = with_free_keys(self.session, spec, found, revive)
            if taken:
                warn_of_taken(spec, taken)
        return above - {None}

    # -- adds latches, members and waiters

    def share(self, key: str, *, members: Iterable[str] = (), waiters: Iterable[str] = (), latest: bool = False) -> Any:
        """Lock a latch against being opened, without waiting for others that add to it; note the tables of what is
        added.  Returns its row, or ``None``; ``latest``: also if the transaction's snapshot does not show it."""
        names = ("id", "opened_at", "broken_at", "members", "waiters", "sealed")
        asked: Any = select(*(self.c[name] for name in names))
        asked, added = asked.where(self.c.id == key), {"members": set(members), "waiters": set(waiters)}
        locking, table = self.adapter.rows.locking, self.model.table
        found = self._execute(locking(table, asked, skips=False) if latest else asked).one_or_none()
        if found is None:
            return None
        if any(tables.difference(getattr(found, name)) for name, tables in added.items()):
            found = self._execute(locking(table, asked, skips=False)).one()  # the latest, whatever the snapshot
            merged = {name: sorted(tables.union(getattr(found, name))) for name, tables in added.items()}
            self.change([key], **merged)
            return self._execute(asked).one()
        if not self.adapter.inspection.locks_elsewhere(self.session.connection(self.spec.bind_arguments)):
            return self._execute(locking(table, asked, skips=False, shared=True)).one()
        self.change([key], changes=self.c.changes + _ONE)  # locks of other nodes do not hold, but two writes conflict
        return self._execute(asked).one()

    def latest(self, key: str, *names: str) -> Any:
        """Return columns of a latch, whatever the transaction's snapshot."""
        return self._latest_latches(select(*(self.c[name] for name in names)).where(self.c.id == key)).one()

    def insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert latches.  Raises :class:`.DuplicateTaskError` if a key exists."""
        defaults: dict[str, Any] = dict.fromkeys(("reports_to", "waits_for"))
        defaults |= {"sealed": SEALED, "members": [], "waiters": []}
        for start in range(0, len(rows), MOST):
            some = [{**defaults, **row} for row in rows[start : start + MOST]]
            try:
                self.adapter.rows.execute(self.session, self.spec, insert(self.model.table), some)
            except DBAPIError as error:
                if not self.adapter.connections.is_duplicate(error):
                    raise
                text = f"there is a batch or an event with the key {some[0]['id']!r} already: keys are never used twice"
                raise DuplicateTaskError(text, model=self.spec.entity) from error


def announce_look(session: Session, spec: QueueSpec) -> None:
    """Let workers look at all latches when this transaction commits, because it may have made some ripe."""
    found = latches_of(spec)
    if found is not None:
        announce(session, spec, found.table.fullname)


def _waits(spec: QueueSpec, ids: Collection[str], *whens: str) -> Criterion:
    return and_(is_waiting(spec), spec["waits_for"].in_(list(ids)), spec["waits_when"].in_(whens))


def has_failed(spec: QueueSpec) -> Criterion:
    """Return whether a task is final without a success: discarded, or cancelled although it was needed."""
    skipped = and_(spec["waits_when"].is_not(None), spec["waits_when"] == SKIPPED)
    cancelled = and_(spec["status"] == state(Status.CANCELLED), ~skipped)
    return or_(spec["status"] == state(Status.DISCARDED), cancelled)


def shown_state(status: str, when: str | None) -> str:
    """Return the state of a task, among which ``skipped`` is that of one that was not needed, and did not run."""
    return SKIPPED if when == SKIPPED and status == Status.CANCELLED else status


def _is_failing(counts: Counter[str]) -> bool:
    return bool(counts["discarded"] or counts["cancelled"])


def _add(counts: Counter[str], numbers: Iterable[int | None]) -> None:
    counts.update({name: int(number or 0) for name, number in zip(("unfinished", *OUTCOMES), numbers, strict=True)})


def _parts(ids: Iterable[str]) -> Iterator[list[str]]:
    every = list(ids)
    for start in range(0, len(every), MOST):
        yield every[start : start + MOST]


def culprit_in(error: str) -> tuple[str, str] | None:
    """Return the model and the key of the task that the error of a task names because of which that was not run."""
    found = re.fullmatch(rf"{NOT_RUN}(\w+) (.+) was \w+", error, re.DOTALL)
    return None if found is None else (found[1], found[2])


# -- looks: of an application's own loops, and of workers --------------------------------------------------------------


def advance(session: AnySession, entity: type[QueueMixin]) -> int:
    """Start the tasks, of all queues, that wait for others that have ended.  Returns how many batches and sets of
    predecessors have ended thereby.

    Workers do this themselves, right after they have settled tasks, and at each poll.  Call it in loops of your own,
    after the commit that has settled tasks, in a transaction of its own; it locks no tasks that are running.  To find
    what has failed, it reads the final members of the batches that have not ended.
    """
    spec, session = spec_of(entity), session_of(session)
    latches = Latches.of(session, spec, Access.SKIP)
    hides = latches.adapter.inspection.hides_rows
    if any(hides(session.connection(each.bind_arguments), each) for each in latches.flows.values()):
        raise ArgumentError("advance() needs a session that sees all tasks, because of row-level security")
    latches.release_late(latches.late(LATE))
    opened = len(latches.break_(latches.failing(None)))
    while more := latches.open(latches.ripe(None)).opened:
        opened += more
    latches.reread()
    return opened


def prune_batches(
    session: AnySession, entity: type[QueueMixin], older_than: timedelta | None = None, *, limit: int | None = None
) -> int:
    """Forget batches, of all queues, that ended longer than ``older_than`` ago: by default, than the ``retention`` of
    the model of latches.  Returns how many rows it has deleted, ``limit`` at the most.

    Their tasks stay; :func:`prune` deletes these.  Refused in sessions with criteria or row-level security.
    """
    session, spec = session_of(session), spec_of(entity)
    latches = Latches.of(session, spec, Access.CHANGE)
    refuse_if_restricted(session, latches.adapter, spec, "prune_batches()")
    age = latches.model.options.retention if older_than is None else duration("older_than", older_than, zero=True)
    if age is None:
        return 0
    if limit is not None:
        count("limit", limit)
    latch, parent = latches.model.table, latches.model.table.alias("parent")
    closed = select(_ONE).where(parent.c.id == latch.c.reports_to, parent.c.opened_at.is_(None))
    old = (latch.c.opened_at <= utcnow(-age), latches._first(closed).is_(None))
    rows, deleted = latches.adapter.rows, 0
    for some in _parts(latches._execute(select(latch.c.id).where(*old).limit(limit)).scalars()):
        deleting = delete(latch).where(latch.c.id.in_(some), latch.c.opened_at.is_not(None))
        deleted += rows.count(session, spec, rows.writing(latch, deleting))
    return deleted


def is_latch_open(spec: QueueSpec, key: str) -> Criterion:
    """Return whether a latch of a queue's table of latches is open."""
    latch = cast(LatchTable, latches_of(spec)).table
    opened = select(_ONE).where(latch.c.id == key, latch.c.opened_at.is_not(None))
    return opened.scalar_subquery().is_not(None)


def is_held_by_batch(spec: QueueSpec) -> Criterion | None:
    """Return whether a task reports to a latch that is closed; ``None`` if the queue's tasks cannot."""
    found = latches_of(spec)
    if found is None:
        return None
    latch = found.table
    closed = select(_ONE).where(latch.c.id == spec["reports_to"], latch.c.opened_at.is_(None))
    return closed.limit(1).correlate(spec.table).scalar_subquery().is_not(None)
