"""Which columns of the application's models the dashboard shows, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .._support.exc import ArgumentError
from ..operations.filtering import column
from ..queue.spec import QueueSpec, spec_of

Columns: TypeAlias = Mapping[type[Any], Sequence[str]]
Redact: TypeAlias = Callable[[Any, str, Any], object]
Link: TypeAlias = Callable[[Any], str | None]

DATA = frozenset({"arguments", "headers", "payload", "result"})
"""Columns of the queue that hold the application's data."""


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

    def named(self, spec: QueueSpec, task: object) -> dict[str, object]:
        """Return the values of the columns that the application names, by attribute, redacted."""
        values = {name: getattr(task, name) for name in self.columns.get(spec.entity, ())}
        redact = self.redact
        return values if redact is None else {name: redact(task, name, value) for name, value in values.items()}

    def filters_of(self, spec: QueueSpec) -> Sequence[str]:
        """Return the attributes by which the application permits filtering."""
        return self.filters.get(spec.entity, ())

    def link_to(self, task: object) -> str | None:
        """Return the URL of the application's own page for ``task``, if it is safe to follow."""
        found = None if self.link is None else self.link(task)
        return found if found is not None and found.startswith(("https://", "http://", "/")) else None
