"""Criteria parsed from user input: the filters of the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, or_

from .._support.exc import ArgumentError
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.states import is_hung, state
from .text_values import identity, value


def criteria(
    spec: QueueSpec,
    *,
    status: Sequence[Status] | None = None,
    topic: str | None = None,
    ids: Sequence[str] | None = None,
    error: str | None = None,
    older_than: timedelta | None = None,
    newer_than: timedelta | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    equal: Mapping[str, str] | None = None,
    hung: bool = False,
) -> list[Criterion]:
    """Return the criteria of the given filters, all of which must hold.

    Raises :class:`.ArgumentError` for a column that the model does not have, and for text that is not a value.
    """
    return [
        *([spec["status"].in_([state(each) for each in status])] if status else []),
        *([_topic(spec, topic)] if topic is not None else []),
        *([of_keys(spec, ids)] if ids else []),
        *([spec["error"].like(error)] if error is not None else []),
        *([spec["created_at"] <= utcnow(-older_than)] if older_than is not None else []),
        *([spec["created_at"] >= utcnow(-newer_than)] if newer_than is not None else []),
        *([spec["created_at"] >= since] if since is not None else []),
        *([spec["created_at"] <= until] if until is not None else []),
        *(_equal(spec, name, text) for name, text in (equal or {}).items()),
        *([is_hung(spec)] if hung else []),
    ]


def of_keys(spec: QueueSpec, texts: Sequence[str]) -> Criterion:
    """Return the criterion of the tasks with these primary keys.  Raises :class:`.ArgumentError` for other text."""
    keys = [identity(spec, each) for each in texts]
    if len(spec.primary_key) == 1 and len(keys) > 1:  # SQLite allows fewer than 1,000 conditions joined by OR
        return spec.primary_key[0].in_([key for (key,) in keys])
    return or_(*map(spec.key, keys))


def column(spec: QueueSpec, name: str) -> ColumnElement[Any]:
    """Return the model's column called ``name``.  Raises :class:`.ArgumentError` for unknown names."""
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    if name not in columns:
        raise ArgumentError(f"{spec.entity.__name__} has no column {name}; its columns are {', '.join(columns)}")
    return columns[name]


def _topic(spec: QueueSpec, topic: str) -> Criterion:
    if "topic" not in spec.columns:
        raise ArgumentError(f"{spec.entity.__name__} has no topics")
    return spec["topic"] == topic


def _equal(spec: QueueSpec, name: str, text: str) -> Criterion:
    chosen = column(spec, name)
    criterion: Criterion = chosen == value(chosen, text)
    return criterion
