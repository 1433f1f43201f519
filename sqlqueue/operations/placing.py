"""Gives new tasks their place among others: the batch that they join, and the tasks, batches and events that they wait
for; and opens events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from sqlalchemy import and_, case, insert, select
from sqlalchemy.event import listens_for
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state, set_committed_value

from .._support import checks
from .._support.errors import ArgumentError, BatchClosedError
from ..model.companions import OUTCOMES, LatchMixin, latches_of, missing_companion
from ..model.declaration import LONGEST_LATCH, QueueMixin
from ..queue.options import Status
from ..queue.spec import QueueSpec, spec_of
from ..sql import NEVER, is_waiting, utcnow, write
from ..transaction import Access, AnySession, refuse_if_restricted, session_of
from .conflicts import insert_unless_duplicate
from .latches import ANY, EVENT, Latches, announce_look, has_failed

When = Literal["completed", "failed", "final"]
Awaited: TypeAlias = "QueueMixin | str"
"""A stored task, or the key of a batch or an event."""
PART = "/"
"""Separates the key of a batch from the names of its parts."""
THEN = f"{PART}then"
"""Follows a key in what tasks report to that wait for it and belong to nothing: no latch has this name, but an index
finds them by it."""


def flow_spec(entity: Any, what: str = "be in a batch") -> QueueSpec:
    """Return the spec of a model whose tasks can have latches; raise the error that says what it lacks for ``what``."""
    spec = spec_of(entity)
    if not spec.has_latches:
        raise ArgumentError(f"{spec.entity.__name__} cannot {what}: derive it from FlowMixin, and migrate")
    if latches_of(spec) is None:
        raise missing_companion(LatchMixin, spec, f"{spec.entity.__name__} cannot {what}")
    return spec


def check_when(when: object) -> None:
    """Raise :class:`.ArgumentError` for a condition that is none."""
    if when not in get_args(When):
        raise ArgumentError(f"when={when!r}: give one of {', '.join(get_args(When))}")


def new_key() -> str:
    """Return the key of a batch to which nobody gives one; later ones are greater."""
    return f"{int(time.time() * 1000):011x}{secrets.token_hex(5)}"


def new_part() -> str:
    """Return the key of a latch that is no batch, and part of none."""
    return f"{PART}{new_key()}"


def check_key(key: str) -> str:
    """Return the key of a batch or an event if it can be one."""
    checks.key("key", key, LONGEST_LATCH - 20)
    if PART in key:
        raise ArgumentError(f"key={key!r}: a key has no slash, which separates it from the names of parts")
    return key


@dataclass(eq=False)
class Place:
    """The place of new tasks of one queue, whose latches are locked against being opened."""

    latches: Latches
    spec: QueueSpec
    values: dict[str, Any] = field(default_factory=dict)
    """What it gives to the tasks, by role."""
    ended: list[Any] = field(default_factory=list)
    """Rows of latches that are open, or broken, already."""
    links: list[str] = field(default_factory=list)
    """Latches that may open at once."""

    def join(self, key: str | None, members: Iterable[str], into: Awaited) -> str:
        """Let tasks of these tables become members of a latch, that of ``into``.  Returns its key."""
        row = None if key is None else self.latches.share(key, members=members)
        if key is None or row is None or row.sealed == EVENT:
            raise ArgumentError(f"into={into!r}: there is no such batch yet, or the task is in none")
        if row.opened_at is not None:
            raise BatchClosedError(f"the batch {key!r} has ended: it takes no more members", key=key)
        return key

    def refuse_cycle(self, batch: str | None, after: Iterable[Awaited]) -> None:
        """Raise :class:`.ArgumentError` if one of ``after`` waits for the end of this batch, directly or not: a member
        that waits for it would never start."""
        depending, waiting = self.depending(batch)
        for each in after:
            if isinstance(each, str):
                closes_cycle = each in depending
            else:
                own = self._spec_of(each)
                closes_cycle = waiting and self._row_of(each, case((is_waiting(own), own["waits_for"]))) in depending
            if closes_cycle:
                text = f"after={each!r} waits for the batch {batch!r}, of which this task is to be a member"
                raise ArgumentError(f"{text}: it would never start")

    def depending(self, batch: str | None) -> tuple[set[str | None], bool]:
        """Return a latch and all that open after it, and whether tasks wait for one of these."""
        latches, c = self.latches, self.latches.c
        depending, todo, waiting = {batch}, [batch], False
        while todo:
            asked = select(c.id, c.reports_to, c.waiters).where(latches.adapter.rows.one_of(latches.spec, c.id, todo))
            rows = latches.read(latches.spec, asked)
            above = latches.above(rows)
            for spec, keys in latches.waiters(rows):
                waiting = True
                reports = select(spec["reports_to"]).where(is_waiting(spec), spec["waits_for"].in_(keys)).distinct()
                above.update(latch for (latch,) in latches.read(spec, reports) if latch is not None)
            todo = list(above - depending)
            depending |= above
        return depending, waiting

    def wait(self, after: Iterable[Awaited], when: str, timeout: timedelta | None) -> None:
        """Let the tasks wait for others."""
        keys = [each if isinstance(each, str) else self._latch_of(each) for each in after]
        if len(keys) == 1:
            (key,) = keys
            self._share(key, self.spec.name)
            if PART not in key:
                self.values.setdefault("reports_to", f"{key}{THEN}")
        else:
            key = new_part()
            for each in keys:
                self._share(each, ANY)
            links = [f"{key}{PART}{number}" for number, _ in enumerate(keys)]
            self.latches.insert(
                [
                    {"id": key, "members": [ANY], "waiters": [self.spec.name]},
                    *({"id": i, "reports_to": key, "waits_for": each} for i, each in zip(links, keys, strict=True)),
                ]
            )
            self.links += links
        moment = NEVER if timeout is None else utcnow(timeout)
        self.values |= {"waits_for": key, "waits_when": when, "status": Status.WAITING.value, "available_at": moment}

    def arrive(self) -> bool:
        """Release the tasks, which are stored now, from what has ended already.  Returns whether anything has."""
        latches = self.latches
        latches.catch_up(self.ended)
        if self.links:
            latches.break_(latches.broken_links(self.links))  # before they open as if nothing had failed
            latches.open(self.links)
        return bool(self.ended or self.links)

    def _share(self, key: str, waiter: str) -> None:
        row = attend(self.latches, key, waiter)
        if waiter != ANY and (row.opened_at is not None or row.broken_at is not None):
            self.ended.append(row)

    def _latch_of(self, task: Awaited) -> str:
        """Return a latch to which this task alone reports from now on, within the one to which it has reported."""
        spec, latches, key = self._spec_of(task), self.latches, new_part()
        former = self._row_of(task, spec["reports_to"])
        named, rows = spec.key(spec.identity_of(task)), latches.adapter.rows
        parent = None if former is None else latches.share(former, members=[ANY])
        latches.insert([{"id": key, "reports_to": None if parent is None else former, "members": [spec.name]}])
        moved = write(spec, and_(named, spec["finished_at"].is_(None)), [(spec["reports_to"], key)])
        if rows.count(latches.session, spec, rows.by_key(spec, moved)):
            if task in latches.session:
                set_committed_value(task, spec.attributes["reports_to"], key)
            return key
        # it has ended: the latch has no members, and opens as the task has ended
        how = select(case((has_failed(spec), spec["status"]))).where(named)
        ends = rows.execute(latches.session, spec, how).scalars().all()
        if not ends:
            raise ArgumentError(f"after={task!r}: it has no row: it is not committed yet, or was deleted")
        latches.change([key], reports_to=None, **({"broken_at": utcnow()} if ends[0] is not None else {}))
        latches.open([key])
        return key

    def batch_of(self, into: Awaited) -> str | None:
        """Return the key of a batch, or the latch to which a task reports, and for which its successors wait."""
        return into if isinstance(into, str) else self._row_of(into, self._spec_of(into)["reports_to"])

    def _spec_of(self, task: object) -> QueueSpec:
        spec = flow_spec(type(task))
        if spec.table.metadata is not self.spec.table.metadata:
            raise ArgumentError(f"{task!r}: the models must have the same MetaData, as their latches are in one table")
        return spec

    def _row_of(self, task: Any, column: Any) -> Any:
        spec = spec_of(type(task))
        found = select(column).where(spec.key(spec.identity_of(task)))
        return self.latches.adapter.rows.execute(self.latches.session, spec, found).scalar()


def listed(after: Awaited | Iterable[Awaited]) -> list[Awaited]:
    """Return what tasks wait for as a list, for the tasks of several models."""
    if isinstance(after, (QueueMixin, str)):
        return [after]
    found = list(after) if isinstance(after, Iterable) else []
    if not found:
        raise ArgumentError(f"after={after!r}: give tasks, or keys of batches or events")
    return found


class Placing(NamedTuple):
    """The arguments of ``enqueue`` that describe a place."""

    into: Awaited | None
    after: Sequence[Awaited] | None
    when: When
    timeout: timedelta | None

    def check(self, *, alone: bool) -> None:
        """Raise :class:`.ArgumentError` for arguments that do not fit together; ``alone``: with no others."""
        check_when(self.when)
        if self.timeout is not None:
            checks.duration("timeout", self.timeout)
        if self.after is None and (self.timeout is not None or self.when != "completed"):
            raise ArgumentError("timeout= and when= are for tasks that wait: give after=")
        if not alone and not (self.into is None and self.after is None):
            raise ArgumentError("after= and into= cannot be combined with on_conflict=, delay= or copy=")

    def of(self, session: Session, spec: QueueSpec) -> Place | None:
        """Return the place of new tasks of this queue, or ``None`` if they have none."""
        if self.into is None and self.after is None:
            return None
        place = Place(Latches.of(session, flow_spec(spec.entity), Access.CHANGE), spec)
        given = self.after or []
        if self.into is not None:
            batch = place.batch_of(self.into)
            if given:
                place.refuse_cycle(batch, given)
            place.values["reports_to"] = place.join(batch, [spec.name], self.into)
        if given:
            place.wait(given, self.when, self.timeout)
        return place


@listens_for(Session, "pending_to_transient")
@listens_for(Session, "persistent_to_transient")
def _leave_place(_: Session, task: object) -> None:
    """Let an instance whose insert was rolled back forget its place: added again, it would wait for no latch at all."""
    spec = getattr(type(task), "__queue_spec__", None)
    if spec is None or not spec.has_latches:
        return
    values = instance_state(task).dict
    roles = [role for role in ("reports_to", "waits_for", "waits_when") if values.get(spec.attributes[role])]
    if roles and values.get(spec.attributes["status"]) == Status.WAITING:
        roles += ["status", "available_at"]
    for role in roles:
        setattr(task, spec.attributes[role], None)


# -- events, which open when somebody says so --------------------------------------------------------------------------


class Event(NamedTuple):
    """An event, as :func:`.event` reads it."""

    key: str
    opened_at: datetime | None
    """When it was opened; ``None`` if it was not."""
    payload: Any
    """What :func:`.open_event` was given."""


def create_event(latches: Latches, key: str) -> None:
    """Insert a latch that no look opens, unless there is one with this key."""
    row = {"id": key, "sealed": EVENT, "members": [], "waiters": []}
    insert_unless_duplicate(latches.session, latches.adapter, latches.spec, insert(latches.model.table).values(row))


def attend(latches: Latches, key: str, waiter: str) -> Any:
    """Lock a latch for which tasks of the table ``waiter`` wait, an event if there is none yet; return its row."""
    row = latches.share(key, waiters=[waiter])
    if row is None:
        create_event(latches, check_key(key))
        row = latches.share(key, waiters=[waiter], latest=True)
        if row is None:
            raise ArgumentError(f"{key!r} is newer than this transaction's snapshot. Roll back.")
    return row


def payload_of(session: Session, spec: QueueSpec, key: str, own: str | None) -> tuple[bool, Any]:
    """Return whether an event is open for which a task of this queue waits from now on, or a batch has ended; and the
    payload, or how many of its members have ended in which way.

    ``own``: the latch to which the task reports.  Raises :class:`.ArgumentError` for a batch that waits for that one.
    """
    latches = Latches.of(session, flow_spec(spec.entity, "wait for an event"), Access.CHANGE)
    row = attend(latches, key, spec.name)
    if row.opened_at is None:
        if own is not None and row.sealed != EVENT and key in Place(latches, spec).depending(own)[0]:
            raise ArgumentError(f"the batch {key!r} waits for this task, which would wait for it: neither would end")
        return False, None
    row = latches.latest(key, "sealed", "payload", *OUTCOMES)
    return True, row.payload if row.sealed == EVENT else {name: getattr(row, name) for name in OUTCOMES}


def open_event(session: AnySession, entity: type[QueueMixin], key: str, payload: Any = None) -> bool:
    """Open an event, whether or not tasks wait for it yet: those that do start when the transaction commits, and later
    ones at once.  Returns false if it is open already, and then changes nothing: the first call wins.

    ``entity``: a model of the queues with which it shares the table of latches.  ``payload``: a value to be stored as
    JSON, which :func:`.event` returns.

    Refused in sessions with criteria or row-level security, since the events are those of all tenants.
    """
    session, spec = session_of(session), flow_spec(entity)
    checks.check_json("payload", payload)
    latches = Latches.of(session, spec, Access.CHANGE)
    refuse_if_restricted(session, latches.adapter, spec, "open_event()")
    if not (held := latches.hold([check_key(key)])):
        create_event(latches, key)
        held = latches.hold([key])
    if not held:
        raise ArgumentError(f"{key!r} is newer than this transaction's snapshot. Roll back.")
    (row,) = held
    if row.sealed != EVENT:
        raise ArgumentError(f"{key!r} is a batch, which opens when its members have ended")
    if row.opened_at is not None:
        return False
    ends = dict(zip(OUTCOMES, (1, 0, 0, 0), strict=True))
    latches.change([key], opened_at=utcnow(), payload=payload, **ends)
    latches.release([row])
    if latches.open(latches.above([row])).left:
        announce_look(session, spec)  # this transaction's snapshot may not show that these are ripe
    latches.reread()
    return True


def event(session: AnySession, entity: type[QueueMixin], key: str) -> Event | None:
    """Return the event with this key, as a handler asks that has waited for it with a timeout; ``None`` if no task has
    waited for it and nobody has opened it.  Refused in sessions with criteria or row-level security."""
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    refuse_if_restricted(session, latches.adapter, spec, "event()")
    columns = latches.model.table.c
    asked = select(columns.id, columns.opened_at, columns.payload)
    asked = asked.where(columns.id == check_key(key), columns.sealed == EVENT)
    row = latches.adapter.rows.execute(session, spec, asked).one_or_none()
    return None if row is None else Event(row.id, row.opened_at, row.payload)
