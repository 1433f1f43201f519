"""Claims of messages: the oldest of each key and those that follow it, in the order of the outbox."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, and_, literal_column, or_, select, union_all
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.selectable import CompoundSelect, Subquery

from .._support.checks import count, duration
from .._support.errors import ArgumentError, Claim, new_token
from ..dialects.base import Adapter
from ..dialects.statements import Unreadable
from ..kinds import OutboxMixin
from ..lifecycle.transitions import claim_assignments
from ..model.companions import history_of
from ..operations.recording import ABANDONED, last_claims, record, set_aside
from ..operations.settling import RETURNED, settle_some
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import Assignment, Pick, is_held, picks, write
from ..transaction import Access, AnySession, HeldClaim, claim_in, claimer_name, ledger_of, open_, session_of, within

# -- statements about the order of the messages of a key --------------------------------------------------------------


class Head(NamedTuple):
    """The first unfinished message of its key."""

    identity: Identity
    message_key: str | None


def is_first(spec: QueueSpec) -> Criterion:
    """Return the criterion that no earlier message of the same key is unfinished; true for messages without a key."""
    return _nothing_before(spec, spec["message_key"], spec.primary_key)


def first_of(adapter: Adapter, pick: Pick, near: int | None) -> Select[Any]:
    """Return a SELECT of message key and primary key of the messages in ``pick`` that are the first of their key.

    If ``near`` is given, only the first ``near`` messages are searched: of many with one key, only one can be found.
    """
    spec, whole = pick.spec, pick if pick.divided is None else replace(pick, index=pick.whole, divided=None)
    if near is None:
        found = pick.select(spec["message_key"], *spec.primary_key).where(is_first(spec)).limit(pick.limit)
        return adapter.rows.use_index(whole, found)
    columns = [spec["message_key"], *spec.primary_key, *(term.column for term in pick.order)]
    named = [column.label(f"column_{n}") for n, column in enumerate(columns)]
    nearest = adapter.rows.use_index(whole, pick.select(*named).limit(near)).subquery("nearest").c
    message_key, *rest = nearest
    key, order = rest[: len(spec.primary_key)], rest[len(spec.primary_key) :]
    by = [term.over(column) for term, column in zip(pick.order, order, strict=True)]
    return select(message_key, *key).where(_nothing_before(spec, message_key, key)).order_by(*by).limit(pick.limit)


def _nothing_before(spec: QueueSpec, message_key: ColumnElement[Any], key: Sequence[ColumnElement[Any]]) -> Criterion:
    # a scalar subquery, since engines turn NOT EXISTS into a join, which pairs all messages of a key with each other
    earlier = spec.table.alias("earlier")
    finished_at, columns = earlier.c[spec["finished_at"].name], [earlier.c[each.name] for each in spec.primary_key]
    conditions = (earlier.c[spec["message_key"].name] == message_key, finished_at.is_(None), _precedes(columns, key))
    one: Select[Any] = select(literal_column("1")).where(*conditions).order_by(finished_at, *columns).limit(1)
    return one.correlate_except(earlier).scalar_subquery().is_(None)


def followers_of(spec: QueueSpec, heads: Mapping[int, Head], share: int) -> Select[Any] | CompoundSelect[Any]:
    """Return a SELECT of up to ``share`` unfinished messages after each head in its key, in order, by its number."""
    key = [f"key_{n}" for n, _ in enumerate(spec.primary_key)]
    branches = [_after(spec, number, head, key, share) for number, head in heads.items()]
    return union_all(*(select(*branch.c) for branch in branches)).order_by("head", *key)


def _after(spec: QueueSpec, number: int, head: Head, key: Sequence[str], share: int) -> Subquery:
    columns = [column.label(name) for column, name in zip(spec.primary_key, key, strict=True)]
    return (
        select(literal_column(str(number)).label("head"), *columns)
        .where(
            spec["message_key"] == head.message_key,
            spec["finished_at"].is_(None),
            _precedes(head.identity, spec.primary_key),
        )
        .order_by(*spec.primary_key)
        .limit(share)
        .subquery(f"line_{number}")
    )


def _precedes(earlier: Sequence[Any], later: Sequence[ColumnElement[Any]]) -> Criterion:
    """Return the comparison column by column, since not every engine compares rows."""
    (first, *rest_of_first), (second, *rest_of_second) = earlier, later
    after: Criterion = second > first
    if not rest_of_second:
        return after
    return or_(after, and_(second == first, _precedes(rest_of_first, rest_of_second)))


# -- claims of messages: the first of each key, and those that follow it ----------------------------------------------
#
# A message is the first of its key if no earlier message of the key is unfinished.  It remains so until it is finished,
# so first messages are searched for without locks, by statements that each see one state of the table.  The locks by
# primary key then decide which session has a message, and whether it may still be claimed.

M = TypeVar("M", bound=OutboxMixin)
LINES = 10
"""The maximum number of keys of which more than the first message is claimed."""
NEAR = 1_000
"""The number of messages searched before all are searched, including those held back by earlier ones."""


def claim_messages(
    session: AnySession,
    entity: type[M],
    *where: Where,
    limit: int,
    lease: timedelta | None = None,
    claimed_by: str | None = None,
) -> Sequence[M]:
    """Claim up to ``limit`` messages that may be published now and that no other claim holds, in the transaction.

    Of each key, the first unfinished message is claimed if it is claimable, then those right after it, while there is
    room, up to the first that is not claimable.  Until it is finished, no other claim gets a message of that key.
    Messages without a key can all be claimed.  Returns persistent instances: the messages of each key together and in
    order, and first the keys whose first message comes first in the model's claim order.

    They are ``running``, with a lease, the model's by default: commit, publish in that order, and settle them.  For
    what is locked, undone by a rollback, and raised, see :func:`.claim_many`; it does not wait for other claims.
    If anything other than :func:`claim_messages` has locked a message, those after it in its key may be locked too.
    """
    spec = outbox_of(entity)
    count("limit", limit)
    if lease is not None:
        duration("lease", lease)
    session = session_of(session)
    claim = _MessageClaim(session, spec, where, limit)
    lines, mine = claim.lock_lines()
    writing = claim_assignments(spec, claimed_by or claimer_name(), lease or spec.options.lease, new_token())
    crashed = claim.abandoned(mine)
    taken = claim.write(mine, writing)
    record(claim.adapter, session, [each for each in crashed if each.identity in taken], ABANDONED)
    unreadable: list[Unreadable] = []
    messages = claim.adapter.rows.load(session, spec, _without_gaps(lines, taken), unreadable=unreadable)
    holds = [(instance_state(each), HeldClaim(claim_in(each))) for each in messages]
    ledger_of(session).remember(session, holds)
    if not unreadable:
        return messages
    set_aside(claim.adapter, session, spec, unreadable, claimed=True)
    # those that follow one of these in its key must wait for it
    ready = set(_without_gaps(lines, taken - {each.identity for each in unreadable}))
    settle_some(session, [each for each in messages if spec.identity_of(each) not in ready], RETURNED)
    return [each for each in messages if spec.identity_of(each) in ready]


def outbox_of(entity: type[Any]) -> QueueSpec:
    """Return the spec of an outbox.  Raises :class:`.ArgumentError` for other models."""
    spec = spec_of(entity)
    if not issubclass(entity, OutboxMixin):
        raise ArgumentError(f"{entity.__name__} is not an outbox: derive it from sqlqueue.outbox.OutboxMixin")
    return spec


class _MessageClaim:
    """The steps of one call of :func:`claim_messages`."""

    def __init__(self, session: Session, spec: QueueSpec, where: Sequence[Where], limit: int) -> None:
        self._session = session
        self._spec = spec
        self._limit = limit
        self._steps = picks(spec, within(session, spec, where), ())
        self.adapter = open_(session, spec, Access.CLAIM)
        self._rows = self.adapter.rows
        first, *_ = found = [step(1) for step in self._steps]
        self._claimable = and_(or_(*(and_(*pick.state) for pick in found)), *first.where)
        """The criterion for messages that may be claimed now, regardless of their place in the order."""

    def lock_lines(self) -> tuple[list[list[Identity]], list[Identity]]:
        """Lock messages; return those found for each key, and those that are locked, without gaps.

        The first of a key is locked before those that follow it, which are not locked if another claim holds the first.
        Keys that others are claiming at the moment are replaced by the next ones.
        """
        lines, free, mine, passed = list[list[Identity]](), set[Identity](), list[Identity](), list[Identity]()
        while room := self._limit - len(mine):
            heads = self._heads(room, passed)
            free |= self._lock([head.identity for head in heads])
            ours = [head for head in heads if head.identity in free]
            some = self._followed(ours, room - len(heads))
            lines += some
            free |= self._lock([identity for line in some for identity in line[1:]])
            mine = _without_gaps(lines, free)
            if len(heads) < room or len(ours) == len(heads):
                break
            passed += [head.identity for head in heads]
        return lines, mine

    def _heads(self, limit: int, passed: Sequence[Identity]) -> list[Head]:
        heads = list[Head]()
        for near in (NEAR, None):
            for step in self._steps:
                if room := limit - len(heads):
                    pick = step(room).without(self._rows.key_in(self._spec, passed)) if passed else step(room)
                    found: Iterable[Any] = self._execute(first_of(self.adapter, pick, near))
                    heads += [Head(tuple(key), message_key) for message_key, *key in found]
            if heads:
                break
        return heads

    def _followed(self, heads: Sequence[Head], room: int) -> list[list[Identity]]:
        """Return each head with its followers, at most ``room`` of these."""
        lines = [[head.identity] for head in heads]
        keyed = [number for number, head in enumerate(heads) if head.message_key is not None][:LINES]
        if room and keyed:
            share = -(-room // len(keyed))
            found = self._execute(followers_of(self._spec, {number: heads[number] for number in keyed}, share))
            for number, *key in found:
                if room:
                    lines[number].append(tuple(key))
                    room -= 1
        return lines

    def _lock(self, identities: Sequence[Identity]) -> set[Identity]:
        """Lock and return the free messages that may still be claimed: what the searches found may be out of date."""
        found: set[Identity] = set()
        for some in self._rows.batches(self._spec, identities):
            state = (self._rows.key_in(self._spec, some), self._claimable)
            named = Pick(spec=self._spec, state=state, where=(), order=(), limit=len(some), index=None, exact=True)
            found.update(self._rows.lock(self._session, named))
        return found

    def write(self, identities: Sequence[Identity], assignments: Sequence[Assignment]) -> set[Identity]:
        """Write the claims and return the keys written.  The criterion is repeated, since not all engines recheck
        it."""
        found: set[Identity] = set()
        for some in self._rows.batches(self._spec, identities):
            taken = write(self._spec, and_(self._rows.key_in(self._spec, some), self._claimable), assignments)
            found |= self._rows.change(self._session, self._spec, taken, some)
        return found

    def abandoned(self, locked: Sequence[Identity]) -> list[Claim]:
        """Return the claims of relays that have crashed, for the history: afterwards the rows show only the new
        ones."""
        spec, found = self._spec, list[Claim]()
        if history_of(spec.table.metadata) is not None:
            for some in self._rows.batches(spec, locked):
                criterion = and_(self._rows.key_in(spec, some), is_held(spec))
                found += last_claims(self.adapter, self._session, spec, criterion)
        return found

    def _execute(self, statement: Any) -> Any:
        return self._rows.execute(self._session, self._spec, statement)


def _without_gaps(lines: Sequence[Sequence[Identity]], held: Container[Identity]) -> list[Identity]:
    return [identity for line in lines for identity in takewhile(held.__contains__, line)]
