"""The filter of a queue's page, as given by its URL or form."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement
from starlette.datastructures import MultiDict, QueryParams

from .._support import checks
from .._support.exc import ArgumentError
from ..operations.filtering import criteria
from ..operations.text_values import age, moment, value
from ..operations.windows import Position
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status

HUNG = "hung"
_TEXTS = ("status", "topic", "key", "error", "message", "older", "newer", "since", "until")
Query = QueryParams | MultiDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the tasks of a queue to show or change."""

    status: str = ""
    """A :class:`.Status`, or ``hung``."""
    topic: str = ""
    key: str = ""
    error: str = ""
    """Text that the error contains."""
    message: str = ""
    """The whole text of the error."""
    older: str = ""
    """A duration: only tasks created longer ago than this."""
    newer: str = ""
    since: str = ""
    """A time in UTC, as browsers send it: only tasks created at that time or later."""
    until: str = ""
    equal: Mapping[str, str] = field(default_factory=dict)
    """Values of the columns that the application has named."""

    @classmethod
    def of(cls, query: Query, columns: Sequence[str]) -> Filter:
        """Return the filter in a URL or a form; ``columns`` are those that tasks can be filtered by."""
        texts = {name: query.get(name, "").strip() for name in _TEXTS}
        equal = {name: text for name in columns if (text := query.get(f"column.{name}", "").strip())}
        return cls(**texts, equal=equal)

    @property
    def query(self) -> dict[str, str]:
        """The filter as URL parameters."""
        texts = {name: getattr(self, name) for name in _TEXTS}
        columns = {f"column.{name}": text for name, text in self.equal.items()}
        return {name: text for name, text in {**texts, **columns}.items() if text}

    @property
    def state(self) -> Status | None:
        """The state that it selects, if any; hung tasks are running."""
        with suppress(ValueError):
            return Status.RUNNING if self.status == HUNG else Status(self.status)
        return None

    def criteria(self, spec: QueueSpec) -> list[Criterion]:
        """Return its criteria besides :attr:`state`.  Raises :class:`.ArgumentError` if they are invalid for this
        queue."""
        for name, given in self.query.items():
            checks.text(name, given)
        if self.status and self.state is None:
            raise ArgumentError(f"{self.status!r} is not a state")
        return criteria(
            spec,
            topic=self.topic or None,
            ids=[self.key] if self.key else None,
            error=_contains(self.error) if self.error else None,
            older_than=age(self.older) if self.older else None,
            newer_than=age(self.newer) if self.newer else None,
            since=moment(self.since) if self.since else None,
            until=moment(self.until) if self.until else None,
            equal=self.equal,
            hung=self.status == HUNG,
        ) + ([spec["error"] == self.message] if self.message else [])


def _contains(text: str) -> str:
    """Return a LIKE pattern: ``%`` and ``_`` match anything, as on the command line."""
    return text if "%" in text else f"%{text}%"


def cursor(position: Position | None) -> str | None:
    """Return a position as text for a URL."""
    if position is None:
        return None
    texts = [
        None if each is None else each.isoformat() if isinstance(each, datetime) else str(each) for each in position
    ]
    return base64.urlsafe_b64encode(json.dumps(texts).encode()).decode().rstrip("=")


def position(columns: Sequence[ColumnElement[Any]], text: str | None) -> Position | None:
    """Return the position that :func:`cursor` made into text.  Raises :class:`.ArgumentError` for other text."""
    if not text:
        return None
    try:
        texts: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise ArgumentError("this URL does not identify a page of the queue") from error
    if (
        not isinstance(texts, list)
        or len(texts) != len(columns)
        or not all(isinstance(each, str | None) for each in texts)
    ):
        raise ArgumentError("this URL does not identify a page of the queue")
    return tuple(None if each is None else value(column, each) for column, each in zip(columns, texts, strict=True))
