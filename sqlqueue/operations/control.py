"""What operators set for all workers: limits and pauses; and which functions no worker claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    and_,
    case,
    delete,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.orm import Session

from .._support import checks
from .._support.errors import ArgumentError
from .._support.texts import error_text
from ..diagnostics.functions import called_functions
from ..dialects.base import Adapter
from ..kinds.columns import LONGEST_TOPIC
from ..kinds.limits import (
    ENDLESS,
    FOREVER,
    LOWERED,
    UNLIMITED,
    Limit,
    create_slots,
    is_place,
    is_taken,
    make,
    read_limits,
    slots_of,
    worths,
)
from ..model.companions import LONGEST_PLACE, PauseMixin, companion_table, needed_companion
from ..model.declaration import LONGEST_KEY, QueueMixin
from ..queue.options import MILLISECOND, Rate, Status
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..sql import Assignment, Pick, all_but, due_states, has_come, is_due, picks, remove, state, utcnow, write
from ..transaction import Access, AnySession, announce, claimer_name, open_, refuse_if_restricted, session_of, within
from .conflicts import insert_unless_duplicate
from .filtering import value, written
from .recording import Shown, moments_read

# -- limits: how many tasks with the same ``limit_key`` may run at once -----------------------------------------------


def set_limit(session: AnySession, entity: type[QueueMixin], key: str, limit: int | None) -> None:
    """Set how many tasks of ``entity`` with this ``limit_key`` may run at once, at most 10,000, from the commit on; 0
    stops the key, and ``None`` removes its limit.

    Running tasks continue.  If more than ``limit`` are running, no task of the key is claimed until the excess ones,
    which are those claimed first, have ended; those claimed while the key had no limit do not count.  Runs in the
    session's transaction, and waits for claims of this key in open transactions.  Raises :class:`.ArgumentError` in a
    session that sees only some of the tasks, because of its criteria or row-level security.
    """
    if limit is not None:
        checks.at_once("limit", limit, least=0)
    rows = _KeyRows.locked(session, entity, key, "set_limit()")
    are_retired = rows.resize([ENDLESS] * (limit or 0), retires=limit is not None)
    rows.write(
        [0],
        (rows.slots["status"], state(Status.RUNNING if limit == 0 else Status.AVAILABLE)),
        (rows.slots["available_at"], utcnow(FOREVER)),
        (rows.slots["max_attempts"], literal_column(str(UNLIMITED if limit is None else LOWERED * are_retired))),
    )


def set_rate(session: AnySession, entity: type[QueueMixin], key: str, rate: Rate | None) -> None:
    """Set how many tasks of ``entity`` with this ``limit_key`` may start within a time, from the commit on; ``None``
    removes its rate.

    Tasks that have started within the former time count: none is claimed before the new rate allows it.  For the
    transaction, locks and errors see :func:`set_limit`.
    """
    if rate is not None and not isinstance(rate, Rate):
        raise ArgumentError(f"rate={rate!r}: give a Rate, as in Rate(100, per=timedelta(minutes=1)), or None")
    rows = _KeyRows.locked(session, entity, key, "set_rate()")
    slots = rows.slots
    if rate is None:
        rows.write([0], (slots["period"], null()))
        rows.resize([], sign=-1, retires=False)
        return
    time = rate.per // MILLISECOND
    period: ColumnElement[int] = literal_column(str(time))
    later = and_(slots["period"] != period, slots["available_at"] > utcnow())
    until = case((later, utcnow(rate.per)), else_=slots["available_at"])
    rows.write([0], (slots["period"], period))
    rows.resize(worths(rate), (slots["available_at"], until), (slots["period"], period), sign=-1, time=time)


@dataclass(frozen=True)
class _KeyRows:
    """The rows of a key, which the session's transaction has locked."""

    session: Session
    adapter: Adapter
    slots: QueueSpec
    key: str

    @classmethod
    def locked(cls, session: AnySession, entity: type[QueueMixin], key: str, call: str) -> _KeyRows:
        """Lock the rows of a key, after creating them if there are none."""
        spec = spec_of(entity)
        slots = slots_of(spec)
        checks.key("key", key, LONGEST_KEY)
        session = session_of(session)
        adapter = open_(session, slots, Access.SKIP)
        refuse_if_restricted(session, adapter, spec, call)
        of_key = slots["slot_key"] == key
        if not adapter.rows.exists(session, slots, of_key):
            create_slots(session, adapter, spec, [key])
        adapter.rows.sweep(session, slots, write(slots, of_key, [(slots["claimed_by"], slots["claimed_by"])]))
        return cls(session, adapter, slots, key)

    def write(self, numbers: Sequence[int], *values: Assignment) -> None:
        """Write to the rows with these numbers."""
        if numbers:
            keys = [(self.key, number) for number in numbers]
            named = self.adapter.rows.key_in(self.slots, keys)
            self.adapter.rows.change(self.session, self.slots, write(self.slots, named, values), keys)

    def resize(
        self,
        worths: Sequence[int],
        *values: Assignment,
        sign: int = 1,
        time: int | None = None,
        retires: bool = True,
    ) -> bool:
        """Let the key have as many slots, or places if ``sign`` is -1, as there are ``worths``, and write ``values`` to
        those that are kept or retired.  Return whether some are retired.

        The used ones are kept first, of these the last used; the rest of them are retired, and of the others deleted.
        """
        slots, adapter = self.slots, self.adapter
        used, others = self._numbers(sign)
        kept, rest = (used + others)[: len(worths)], used[len(worths) :]
        gone = others[max(len(worths) - len(used), 0) :] + ([] if retires else rest)
        alike = defaultdict[int, list[int]](list, {0: rest if retires else []})
        for number, worth in zip(kept, worths, strict=False):
            alike[worth].append(number)
        for worth, numbers in alike.items():
            self.write(numbers, (slots["max_attempts"], literal_column(str(worth))), *values)
        if gone:
            keys = [(self.key, number) for number in gone]
            adapter.rows.change(self.session, slots, remove(slots, adapter.rows.key_in(slots, keys)), keys)
        first = max(map(abs, used + others), default=0) + 1
        new = enumerate(worths[len(kept) :], first)
        make(self.session, adapter, slots, ((self.key, sign * number, worth, time) for number, worth in new))
        return bool(alike[0])

    def _numbers(self, sign: int) -> tuple[list[int], list[int]]:
        """Return the numbers of slots, or places, that are used, the last used first, and of the others."""
        slots, number, table = self.slots, self.slots["slot_number"], self.slots.table
        taken = case((is_taken(slots, table), literal_column("1")))
        kind = is_place(slots, table) if sign < 0 else number > literal_column("0")
        asked = select(number, taken).where(slots["slot_key"] == self.key, kind).order_by(slots["claimed_at"].desc())
        latest = asked.with_for_update(key_share=True)  # reads the latest rows even at REPEATABLE READ
        rows: list[tuple[int, int | None]] = [
            tuple(row) for row in self.adapter.rows.execute(self.session, slots, latest)
        ]
        return [number for number, held in rows if held], [number for number, held in rows if not held]


def limits(session: AnySession, entity: type[QueueMixin], *, first: int | None = None) -> list[Limit]:
    """Return the keys that have been used, or given a limit or rate, sorted by key: all, or only the ``first`` ones."""
    slots = slots_of(spec_of(entity))
    session = session_of(session)
    if first is not None:
        checks.count("first", first)
    return read_limits(open_(session, slots), session, slots, first=first)


# -- pauses of queues, topics and keys, for all workers at once: rows in the database ---------------------------------


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a queue, of one ``topic``, or of one ``key``."""

    topic: str | None
    key: Any
    """The key whose tasks are paused, see :func:`keys`."""
    paused_at: datetime
    """When it was paused, by the database's clock."""
    paused_by: str
    """The name given to :func:`pause`; ``host:pid`` by default."""
    reason: str | None
    """The reason given to :func:`pause`."""

    @property
    def part(self) -> str | None:
        """The part of the queue that is paused, in words; ``None`` for the whole queue."""
        if self.key is not None:
            return f"the key {self.key!r}"
        return None if self.topic is None else f"the topic {self.topic!r}"


def pause(
    session: AnySession,
    entity: type[QueueMixin],
    topic: str | None = None,
    *,
    key: Any = ...,
    reason: str | None = None,
    paused_by: str | None = None,
) -> bool:
    """Stop all workers from claiming tasks of this queue, of one ``topic``, or of one ``key``, until :func:`resume`.

    A ``key`` is a value of the column that ``fair`` or ``sequential`` names, the ``limit_key`` of a
    :class:`.LimitMixin`, or the key of messages.  The other keys go on as if it had no tasks, however many it has.
    Tasks without a key are paused with the whole queue only; ``key=None`` is refused.

    Runs in the session's transaction, best as its first statement, like a claim.  Workers notice within their ``poll``
    interval, or at once where they are notified; running tasks continue.  Classes that share a table are paused
    together.  Claims outside of workers are not affected: see :func:`paused`.

    Returns false, and changes nothing, if it is paused already; of several concurrent calls, one returns true.  Raises
    :class:`.ConfigurationError` if the application has no model for pauses, see :class:`.PauseMixin`, and
    :class:`.ArgumentError` in a session that sees only some of the tasks, because of its criteria or row-level
    security.
    """
    spec = spec_of(entity)
    table, place = _pauses_table(spec), _place(spec, topic, key)
    who = claimer_name(paused_by, "paused_by")
    session = session_of(session)
    adapter = open_(session, spec, Access.SKIP)
    refuse_if_restricted(session, adapter, spec, "pause()")
    # UPDATE instead of SELECT, to wait for an uncommitted resume()
    unchanged = update(table).where(table.c.queue == place).values(queue=table.c.queue)
    if adapter.rows.count(session, spec, unchanged):
        return False
    why = None if reason is None else error_text(reason)
    values = {"queue": place, "paused_at": utcnow(), "paused_by": who, "reason": why}
    if not insert_unless_duplicate(session, adapter, spec, insert(table).values(values)):
        return False  # a concurrent call was faster
    announce(session, spec, table.fullname)
    return True


def resume(session: AnySession, entity: type[QueueMixin], topic: str | None = None, *, key: Any = ...) -> bool:
    """Undo :func:`pause` in the session's transaction.  Returns false if it was not paused.

    A topic, a key and the whole queue are paused separately: workers claim only when all are resumed.  Raises the
    errors of :func:`pause`.
    """
    spec = spec_of(entity)
    table, place = _pauses_table(spec), _place(spec, topic, key)
    session = session_of(session)
    adapter = open_(session, spec)
    refuse_if_restricted(session, adapter, spec, "resume()")
    resumed = adapter.rows.count(session, spec, delete(table).where(table.c.queue == place)) > 0
    if resumed:
        announce(session, spec, table.fullname)
    return resumed


def paused(session: AnySession, entity: type[QueueMixin]) -> list[Pause]:
    """Return the pauses of this queue: that of the whole queue, then those of topics, sorted by name, then of keys.

    Empty if nothing is paused or the application has no model for pauses.
    """
    spec = spec_of(entity)
    found = _facts(session_of(session), spec)
    return [Pause(*what, *found[place]) for place, what in _paused_parts(spec, found).items()]


def pauses_of(session: Session, spec: QueueSpec, topic: str | None, key: Any) -> list[Pause]:
    """Return the pauses that keep a task of ``topic`` with this ``key`` waiting, three at most.  Reads no others."""
    places: dict[str, tuple[str | None, Any]] = {spec.table.fullname: (None, None)}
    if topic is not None:
        places[_place(spec, topic, ...)] = topic, None
    if key is not None and (place := _place_of_key(spec, key)) is not None:
        places[place] = None, key
    found = _facts(session, spec, places)
    return [Pause(*what, *found[place]) for place, what in places.items() if place in found]


def _facts(session: Session, spec: QueueSpec, places: Collection[str] | None = None) -> dict[str, Sequence[Any]]:
    """Return the pauses with these ``places``, or of all queues; none if the application has no model for pauses."""
    table = companion_table(PauseMixin, spec.table.metadata)
    if table is None:
        return {}
    criteria = () if places is None else (table.c.queue.in_(places),)

    def asked(shown: Shown) -> Select[*tuple[Any, ...]]:
        pauses = select(table.c.queue, shown(table.c.paused_at), table.c.paused_by, table.c.reason)
        return pauses.where(*criteria)

    return {place: facts for place, *facts in moments_read(open_(session, spec), session, spec, asked)}


def paused_keys(session: Session, spec: QueueSpec) -> set[Any]:
    """Return the keys of this queue that are paused."""
    return {key for _, key in _paused_parts(spec, _facts(session, spec)).values() if key is not None}


def _paused_parts(spec: QueueSpec, places: Collection[str]) -> dict[str, tuple[str | None, Any]]:
    """Return the topic or the key of those of ``places``, as ``pause`` stored them, that belong to this queue."""
    queue, column, found = spec.table.fullname, spec.keyed_by, dict[str, tuple[str | None, Any]]()
    for place in sorted(places):
        rest = place.removeprefix(queue) if place.startswith(queue) else None
        if rest == "":
            found[place] = None, None
        elif rest is not None and rest[0] == _TOPIC and spec.has_topics:
            found[place] = rest[1:], None
        elif rest is not None and rest[0] == _IS and column is not None:
            with suppress(ArgumentError):  # the column has another type now
                found[place] = None, value(column, rest[1:])
    return found


def not_paused(adapter: Adapter, spec: QueueSpec, places: Collection[str]) -> tuple[Criterion, ...] | None:
    """Return criteria that exclude paused topics and keys, or ``None`` if the whole queue is among ``places``."""
    parts = _paused_parts(spec, places).values()
    if (None, None) in parts:
        return None
    topics = [topic for topic, _ in parts if topic is not None]
    keys = [key for _, key in parts if key is not None]
    column: Any = spec.keyed_by
    return (
        *((~adapter.rows.one_of(spec, spec["topic"], topics),) if topics else ()),
        *((all_but(column, keys),) if keys else ()),
    )


def _pauses_table(spec: QueueSpec) -> Table:
    return needed_companion(PauseMixin, spec, f"{spec.entity.__name__} cannot be paused")


_TOPIC, _IS = ":", "="
"""What follows the name of the queue in the row of a pause, before a topic or a key."""


def _place(spec: QueueSpec, topic: str | None, key: Any) -> str:
    """Return the key of the row that records a pause."""
    if topic is not None and key is not ...:
        raise ArgumentError(f"topic={topic!r} and key={key!r}: pause one of them, or each by its own call")
    if key is None:
        raise ArgumentError("key=None: tasks without a key cannot be paused alone; for the whole queue, leave out key=")
    if key is not ...:
        keyed_column(spec)
        place = _place_of_key(spec, key)
        if place is None:
            raise ArgumentError(f"key={key!r} is not a value of {spec.keyed_by}, or too long to be paused")
        return place
    if topic is None:
        return spec.table.fullname
    if not spec.has_topics:
        raise ArgumentError(
            f"{spec.entity.__name__} has no topics: derive it from TopicMixin, or pause the whole queue"
        )
    checks.key("topic", topic, LONGEST_TOPIC)
    return f"{spec.table.fullname}{_TOPIC}{topic}"


def keyed_column(spec: QueueSpec) -> Column[Any]:
    """Return the column with the keys of a queue.  Raises :class:`.ArgumentError` if it has none."""
    if spec.keyed_by is None:
        raise ArgumentError(
            f"{spec.entity.__name__} has no keys: QueueOptions(fair=...) or QueueOptions(sequential=...) names their"
            " column, and LimitMixin has one"
        )
    return spec.keyed_by


def _place_of_key(spec: QueueSpec, key: Any) -> str | None:
    """Return the key of the row that records the pause of a key, ``None`` if it cannot be written as text."""
    column = keyed_column(spec)
    text = written(key)
    place = f"{spec.table.fullname}{_IS}{text}"
    with suppress(ArgumentError):
        if len(place) <= LONGEST_PLACE and value(column, text) == key:
            return place
    return None


# -- finds functions whose calls wait because no worker claims them ---------------------------------------------------

UNSERVED = timedelta(minutes=5)
"""The waiting time after which calls count as unserved."""
_FIRST = 1_000
"""The number of calls, in claim order, that are searched for the oldest."""


def unserved_functions(
    session: AnySession, entity: type[QueueMixin], *where: Where, after: timedelta = UNSERVED
) -> dict[str, timedelta]:
    """Return the functions that no worker seems to have registered, and how long the oldest claimable call of each has
    waited.

    These are the functions with a call that has been claimable for longer than ``after``, and none that is running
    under a lease: a worker that is merely behind has some running.  Empty for models that do not derive from
    ``JobMixin``.

    Runs a few short statements for each function (at most 1,000), whose cost does not depend on the number of rows.
    Locks nothing.
    """
    spec = spec_of(entity)
    if "task" not in spec.columns:
        return {}
    session = session_of(session)
    adapter, criteria = open_(session, spec), within(session, spec, where)
    called = called_functions(partial(adapter.rows.execute, session, spec), spec)
    found = ((name, _waiting(session, adapter, spec, name, criteria)) for name in called)
    return {name: age for name, age in found if age is not None and age > after}


def _waiting(
    session: Session, adapter: Adapter, spec: QueueSpec, name: str, where: Sequence[Where]
) -> timedelta | None:
    """Return how long the oldest claimable call has waited; ``None`` if there is none, or one is running."""
    ready, due = (step(_FIRST) for step in picks(spec, [spec["task"] == name, *where]))
    moment = spec["available_at"]
    overdue = due.of(*(each for each in due_states(spec) if each is not Status.RUNNING))
    oldest = (_oldest(adapter, each) for each in (ready, overdue))
    running = replace(due, state=(is_due(spec), ~has_come(spec))).of(Status.RUNNING)
    held = adapter.rows.select_candidates(replace(running, limit=1), moment.label("moment")).subquery("held")
    asked = select(*oldest, select(func.count()).select_from(held).scalar_subquery(), utcnow())
    row: Any = adapter.rows.execute(session, spec, asked).one()
    *moments, held, now = row
    waits = [now - each for each in moments if each is not None]
    return max(waits) if waits and not held else None


def _oldest(adapter: Adapter, pick: Pick) -> Any:
    first = adapter.rows.select_candidates(pick, pick.spec["available_at"].label("moment")).subquery("first")
    return select(func.min(first.c.moment)).scalar_subquery()
