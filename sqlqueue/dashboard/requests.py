"""What a request asks for: an action, a filter."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement
from starlette.datastructures import MultiDict, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request

from .._support import checks
from .._support.errors import ArgumentError
from ..operations.filtering import age, containing, criteria, moment, of_keys, value
from ..operations.paging import Order, Position, Sorting
from ..operations.reactivating import (
    CANCEL,
    RERUN,
    RETRY,
    RUN_NOW,
    MassChange,
    discarding,
    in_states,
    prioritizing,
    timing,
)
from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec
from ..sql import LARGEST, NEVER
from .access import ON_QUEUES, Action, Viewer
from .site import site_of, viewer_of

# -- an action as requested by a URL or a form ------------------------------------------------------------------------

MAX_KEYS = 500
"""The maximum number of tasks selected one by one: pages show fewer, and SQLite could not compare many more."""


CHANGES: Mapping[Action, MassChange] = {
    Action.RETRY: RETRY,
    Action.RERUN: RERUN,
    Action.RUN_NOW: RUN_NOW,
    Action.SET_PRIORITY: prioritizing(0),
    Action.SET_TIME: timing(NEVER),
    Action.CANCEL: CANCEL,
    Action.DISCARD: discarding("discarded in the dashboard"),
}
"""The actions on tasks, in the order of their buttons, with the states that they apply to."""


def possible(viewer: Viewer, status: str | None, *, abandoned: bool) -> list[Action]:
    """Return the actions that a viewer may perform and that change tasks with this status, or with any if it is
    ``None``."""
    return [
        action
        for action, change in CHANGES.items()
        if action in viewer.may and (status is None or status in change.states or (abandoned and change.abandoned))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedAction:
    """An action on a queue."""

    action: Action
    spec: QueueSpec
    whole: Sequence[QueueSpec]
    """The queues of the batch that the filter names, if the action is one on a whole batch."""
    filter: Filter
    keys: Sequence[str]
    """The keys of the tasks; if empty, all tasks that the filter matches."""
    texts: Query
    """The other fields of the form."""

    def text(self, name: str) -> str:
        """Return a field of the form."""
        return self.texts.get(name, "").strip()

    @property
    def name(self) -> str:
        """What it changes: a queue, or a batch."""
        return f"batch {self.filter.batch}" if self.whole else self.spec.name

    @property
    def chosen(self) -> dict[QueueSpec, list[Criterion]]:
        """The criteria of the tasks, by queue; 400 if they are invalid."""
        try:
            return {spec: self._criteria(spec) for spec in self.whole or [self.spec]}
        except ArgumentError as error:
            raise HTTPException(400, str(error)) from error

    def _criteria(self, spec: QueueSpec) -> list[Criterion]:
        state = self.filter.state
        in_state = [] if state is None else [in_states(spec, [state], abandoned=False)]
        return [of_keys(spec, self.keys)] if self.keys else [*self.filter.criteria(spec), *in_state]

    @property
    def change(self) -> MassChange:
        """The change that an action makes to tasks; 400 if the form has no valid value for it."""
        try:
            match self.action:
                case Action.SET_PRIORITY:
                    return prioritizing(_priority(self.spec, self.text("priority")))
                case Action.SET_TIME:
                    return timing(moment(self.text("time")))
        except ArgumentError as error:
            raise HTTPException(400, str(error)) from error
        reason = self.text("reason")
        return discarding(reason) if self.action is Action.DISCARD and reason else CHANGES[self.action]


def _priority(spec: QueueSpec, text: str) -> int:
    number: int = value(spec["priority"], text)
    if abs(number) > LARGEST:
        raise ArgumentError(f"{text!r} is too large for a priority")
    return number


def permitted(request: Request, actions: Container[Action]) -> Action:
    """Return the action in the path, one of ``actions``; 404 if it is not one of them, 403 if the viewer may not
    perform it."""
    action = next((each for each in Action if each == request.path_params["action"]), None)
    if action is None or action not in actions:
        raise HTTPException(404, "There is no such action.")
    if action not in viewer_of(request).may:
        raise HTTPException(403, f"You are not allowed to do this: {action}.")
    return action


def requested_action(request: Request, fields: Query) -> RequestedAction:
    """Return the requested action.

    Errors as for :func:`permitted`, and 400 if the request selects neither tasks nor all of them.
    """
    action = permitted(request, ON_QUEUES)
    site = site_of(request)
    spec = site.queue(request)
    is_of_batch = fields.get("scope") == "batch"
    by_filter = is_of_batch or fields.get("scope") == "filter"
    keys = [] if by_filter else [key for name, key in fields.multi_items() if name == "key" and key]
    if action in CHANGES and not by_filter and not keys:
        raise HTTPException(400, "Select tasks first.")
    if len(keys) > MAX_KEYS:
        raise HTTPException(400, f"Select at most {MAX_KEYS} tasks, or all that match a filter.")
    chosen = Filter.of(fields, site.exposure.filters_of(spec)) if by_filter else Filter()
    if is_of_batch and not chosen.batch:
        raise HTTPException(400, "Select a batch first.")
    whole = [each for each in site.queues.values() if each.has_latches] if is_of_batch else []
    return RequestedAction(action=action, spec=spec, whole=whole, filter=chosen, keys=keys, texts=fields)


# -- the filter of a queue's page, as given by its URL or form --------------------------------------------------------

ABANDONED = "abandoned"
_TEXTS = ("search", "status", "topic", "key", "error", "error_group", "batch", "older", "newer", "since", "until")
Query = QueryParams | MultiDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the tasks of a queue to show or change."""

    status: str = ""
    """A :class:`.Status`, or ``abandoned``."""
    search: str = ""
    """Text that a key, a column of the queue's kind, the error or one of ``columns`` contains."""
    topic: str = ""
    key: str = ""
    error: str = ""
    """Text that the error contains."""
    error_group: str = ""
    """The key of an :class:`.ErrorGroup`."""
    batch: str = ""
    """The key of a batch of which the tasks are members."""
    older: str = ""
    """A duration: only tasks created longer ago than this."""
    newer: str = ""
    since: str = ""
    """A time in UTC, as browsers send it: only tasks created at that time or later."""
    until: str = ""
    equal: Mapping[str, str] = field(default_factory=dict)
    """Values of ``columns``."""
    columns: Sequence[str] = ()
    """The columns by which tasks can be filtered."""

    @classmethod
    def of(cls, query: Query, columns: Sequence[str]) -> Filter:
        """Return the filter in a URL or a form; ``columns`` are those that tasks can be filtered by."""
        texts = {name: query.get(name, "").strip() for name in _TEXTS}
        equal = {name: text for name in columns if (text := query.get(f"column.{name}", "").strip())}
        return cls(**texts, equal=equal, columns=tuple(columns))

    @property
    def query(self) -> dict[str, str]:
        """The filter as URL parameters."""
        texts = {name: getattr(self, name) for name in _TEXTS}
        columns = {f"column.{name}": text for name, text in self.equal.items()}
        return {name: text for name, text in {**texts, **columns}.items() if text}

    @property
    def state(self) -> Status | None:
        """The state that it selects, if any; abandoned tasks are running."""
        with suppress(ValueError):
            return Status.RUNNING if self.is_of_abandoned else Status(self.status)
        return None

    @property
    def is_of_abandoned(self) -> bool:
        """Whether it selects running tasks whose lease has expired."""
        return self.status == ABANDONED

    def criteria(self, spec: QueueSpec) -> list[Criterion]:
        """Return its criteria besides :attr:`state`.  Raises :class:`.ArgumentError` if they are invalid for this
        queue."""
        for name, given in self.query.items():
            checks.text(name, given)
        if self.status and self.state is None:
            raise ArgumentError(f"{self.status!r} is not a state")
        rows = criteria(
            spec,
            topic=self.topic or None,
            ids=[self.key] if self.key else None,
            error=_contains(self.error) if self.error else None,
            error_group=self.error_group or None,
            batch=self.batch or None,
            older_than=age(self.older) if self.older else None,
            newer_than=age(self.newer) if self.newer else None,
            since=moment(self.since) if self.since else None,
            until=moment(self.until) if self.until else None,
            equal=self.equal,
            abandoned=self.is_of_abandoned,
        )
        searched = [containing(spec, self.search, self.columns)] if self.search else []
        return [*rows, *searched]


def _contains(text: str) -> str:
    """Return a LIKE pattern: ``%`` and ``_`` match anything, as on the command line."""
    return text if "%" in text else f"%{text}%"


@dataclass(frozen=True, slots=True)
class Sort:
    """The order of a list of tasks; by default, the newest first."""

    by: Sorting = Sorting.CREATED
    descending: bool = True

    @classmethod
    def of(cls, query: Query) -> Sort:
        """Return the order in a URL: ``priority``, ``-time``.  Raises :class:`.ArgumentError` for other text."""
        text = query.get("sort", "").strip()
        by = next((each for each in Sorting if each == text.removeprefix("-")), None)
        if text and by is None:
            raise ArgumentError(
                f"{text!r} is not an order: give {', '.join(Sorting)}, or -{Sorting.TIME} for descending"
            )
        return cls() if by is None else cls(by, text.startswith("-"))

    @property
    def text(self) -> str | None:
        """The order as a URL parameter; ``None`` for the default."""
        return None if self == Sort() else f"{'-' if self.descending else ''}{self.by}"

    def order(self, spec: QueueSpec) -> Order:
        """Return the order of the tasks of a queue."""
        return self.by.order(spec, descending=self.descending)

    def direction(self, by: str) -> str | None:
        """Return the direction in which a list is sorted ``by`` this, for ``aria-sort``; ``None`` if it is not."""
        return None if by != self.by else "descending" if self.descending else "ascending"

    def turned(self, by: str) -> Sort:
        """Return the order after a click on the heading of a column."""
        descending = by != Sorting.PRIORITY  # the first in the order of claims, and what is newest
        return Sort(Sorting(by), not self.descending if by == self.by else descending)


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
        or not all(
            isinstance(each, str) or (each is None and not _is_of_key(column))
            for column, each in zip(columns, texts, strict=True)
        )
    ):
        raise ArgumentError("this URL does not identify a page of the queue")
    return tuple(None if each is None else value(column, each) for column, each in zip(columns, texts, strict=True))


def _is_of_key(column: ColumnElement[Any]) -> bool:
    """Return whether it is a column of the primary key, which can always be read, and without which a position would be
    that of all rows."""
    return isinstance(column, Column) and column.primary_key
