"""Which columns of the application's models the dashboard shows, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Enum, String, select
from sqlalchemy.orm import Session, load_only
from sqlalchemy.sql.base import ExecutableOption

from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..operations.filtering import column
from ..operations.finding import Damaged
from ..queue.spec import Identity, QueueSpec, spec_of

Columns: TypeAlias = Mapping[type[Any], Sequence[str]]
Redact: TypeAlias = Callable[[Any, str, Any], object]
Link: TypeAlias = Callable[[Any], str | None]

CELL = 2_000
"""The maximum number of characters that are read of a value for a row of a table, which shows fewer."""
LONGEST = 100_000
"""The maximum number of characters of a value on the page of its task."""
DATA = frozenset({"arguments", "headers", "payload", "result"})
"""Columns of the queue that hold the application's data."""


def shortened(text: str, longest: int) -> str:
    """Return ``text``, or its beginning with an ellipsis."""
    return text if len(text) <= longest else f"{text[:longest]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The columns, filters and functions that the application has configured, beyond the queue's own columns."""

    columns: Columns
    filters: Columns
    redact: Redact | None
    link: Link | None

    def __post_init__(self) -> None:
        for named in (self.columns, self.filters):
            for model, names in named.items():
                if isinstance(names, str):
                    raise ArgumentError(f"{names!r}: give a list of attribute names for {model.__name__}")
                for name in names:
                    column(spec_of(model), name)

    def own(self, spec: QueueSpec, task: object) -> dict[str, Any]:
        """Return the queue's columns of ``task``, by role, without those that hold the application's data."""
        return {role: getattr(task, name) for role, name in spec.attributes.items() if role not in DATA}

    def named(self, spec: QueueSpec, task: object, cut: Mapping[str, Any], longest: int) -> dict[str, str | None]:
        """Return the columns that the application names, by attribute, redacted, and as text of at most ``longest``
        characters.  ``cut``: what :meth:`texts` has read for ``task``."""
        names = self.columns.get(spec.entity, ())
        values = {name: cut[name] if name in cut else getattr(task, name) for name in names}
        if self.redact is not None and isinstance(task, Damaged):  # the application's function expects a task
            values = dict.fromkeys(names, "(its row cannot be read)")
        elif self.redact is not None:
            values = {name: self.redact(task, name, value) for name, value in values.items()}
        return {name: None if value is None else shortened(str(value), longest) for name, value in values.items()}

    def loading(self, spec: QueueSpec, roles: Collection[str]) -> ExecutableOption:
        """Return the option to load what pages show of a task: the queue's columns ``roles``, and those columns that
        the application names and that :meth:`texts` does not read.  Others may be large."""
        own = [spec.attributes[role] for role in roles if role in spec.attributes and role not in DATA]
        texts = self._texts(spec)
        named = [name for name in self.columns.get(spec.entity, ()) if name not in texts]
        return load_only(*(getattr(spec.entity, name) for name in (*own, *named)))

    def texts(
        self, adapter: Adapter, session: Session, spec: QueueSpec, keys: Sequence[Identity], longest: int
    ) -> dict[Identity, dict[str, str | None]]:
        """Return the texts of the columns that the application names, for each of these tasks, by attribute.

        The database cuts them after ``longest`` characters, and one more.  Returns nothing if a row cannot be read.
        """
        texts, length = self._texts(spec), len(spec.primary_key)
        if not texts or not keys:
            return {}
        cut = [adapter.types.beginning(each, longest + 1).label(name) for name, each in texts.items()]
        whole = select(*spec.primary_key, *cut).select_from(spec.mapper.persist_selectable)
        read = whole.where(adapter.keys.key_in(spec, keys))
        try:
            rows: Any = adapter.rows.execute(session, spec, read).all()
        except Exception as error:
            if not adapter.errors.is_of_row(error):
                raise
            return {}
        return {tuple(row[:length]): dict(zip(texts, row[length:], strict=True)) for row in rows}

    def _texts(self, spec: QueueSpec) -> dict[str, ColumnElement[Any]]:
        """Return the columns of plain text that the application names, by attribute.

        Types of the application, which may decode a text, are given the whole.
        """
        named = {name: column(spec, name) for name in self.columns.get(spec.entity, ())}
        return {
            name: each
            for name, each in named.items()
            if isinstance(each.type, String) and not isinstance(each.type, Enum)
        }

    def filters_of(self, spec: QueueSpec) -> Sequence[str]:
        """Return the attributes by which the application permits filtering."""
        return self.filters.get(spec.entity, ())

    def link_to(self, task: object) -> str | None:
        """Return the URL of the application's own page for ``task``, if it is safe to follow."""
        found = None if self.link is None or isinstance(task, Damaged) else self.link(task)
        return found if found is not None and found.startswith(("https://", "http://", "/")) else None
