"""How an engine takes new rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import ColumnElement, Connection, Insert, Table

from ..._support.exc import ArgumentError, ConfigurationError
from ...queue.spec import QueueSpec
from ...sql.selection import Assignment, UniqueBy
from .product import Product

Replacement: TypeAlias = Callable[[Callable[[str], ColumnElement[Any]]], Sequence[Assignment]]
"""From the values that an insert proposed, by column name, to what an existing row is given."""


class Inserts:
    """INSERT, without an upsert and without a bulk protocol."""

    numbers_keys: ClassVar[bool] = True
    """Whether the server makes integer keys also where a model does not say how, as by ``Identity()``."""
    key_before_row: ClassVar[bool] = False
    """Whether an upsert by a unique key locks that first and then the row, where a completion locks the row and then
    the key that it takes away: the two would deadlock."""
    sends_values_alone: ClassVar[bool] = False
    """Whether many rows are inserted by one request only if all that they are given are values."""

    def __init__(self, product: Product) -> None:
        self.product = product

    def check_keys(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`.ConfigurationError` for a row, by names of attributes, that would be left without a key."""
        for column in () if self.numbers_keys else spec.unnumbered:
            name = spec.mapper.get_property_by_column(column).key
            if any(row.get(name) is None for row in rows):
                advice = "mapped_column(Identity(), primary_key=True), or with FetchedValue() if a trigger fills it in"
                raise ConfigurationError(
                    f"{spec.entity.__name__}.{name} has no value, and {self.product.name} makes none: declare {advice}",
                    model=spec.entity,
                )

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        """Return an INSERT that leaves a row with the same key as it is, or gives it what ``replace`` says.

        ``None`` where the engine has none: the caller then tries an UPDATE first.
        """
        return None

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load rows by the engine's own bulk protocol, in this transaction; :class:`.ArgumentError` without one."""
        raise ArgumentError(f"{self.product.name} has no COPY: leave copy=True out, the rows are inserted in bulk")


def on_conflict(statement: Any, by: UniqueBy, replace: Replacement | None) -> Insert:
    """Return ``statement`` with ON CONFLICT, in the form that PostgreSQL and SQLite share."""
    target = {"index_elements": list(by.columns), "index_where": by.predicate}
    if replace is None:
        leaving: Insert = statement.on_conflict_do_nothing(**target)
        return leaving
    values = {column.name: value for column, value in replace(lambda name: statement.excluded[name])}
    replacing: Insert = statement.on_conflict_do_update(**target, set_=values)
    return replacing
