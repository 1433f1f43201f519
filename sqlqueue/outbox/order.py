"""Statements about the order of the messages of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, literal_column, or_, select, union_all
from sqlalchemy.sql.selectable import CompoundSelect, Subquery

from ..dialects.base import Adapter
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Pick


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
        return adapter.locking.along(whole, found)
    columns = [spec["message_key"], *spec.primary_key, *(term.column for term in pick.order)]
    named = [column.label(f"column_{n}") for n, column in enumerate(columns)]
    nearest = adapter.locking.along(whole, pick.select(*named).limit(near)).subquery("nearest").c
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
