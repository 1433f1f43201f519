"""Inserts rows: upserts and bulk protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import ColumnElement, Connection, Insert, Table, insert

from ..._support.errors import ArgumentError, ConfigurationError
from ...queue.spec import QueueSpec
from ...sql.rows import Assignment, UniqueBy, utcnow
from .product import Product

Replacement: TypeAlias = Callable[[Callable[[str], ColumnElement[Any]]], Sequence[Assignment]]
"""Takes the values that an insert proposes, by column name; returns the assignments to the existing row."""

Values: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""The parameters of a statement, or of each of its executions."""


class Inserts:
    """Plain INSERT, without an upsert or a bulk protocol."""

    numbers_keys: ClassVar[bool] = True
    """Whether the server generates integer keys even if the model declares no generator, such as ``Identity()``."""
    key_before_row: ClassVar[bool] = False
    """Whether an upsert locks the unique index entry before the row, but completion the row first: they can
    deadlock."""
    sends_values_alone: ClassVar[bool] = False
    """Whether many rows are inserted in one request only if they contain no SQL expressions."""

    drops_blanks: ClassVar[bool] = False
    """Whether comparisons of text ignore trailing blanks, regardless of the collation."""

    def __init__(self, product: Product) -> None:
        self.product = product

    def check_keys(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`.ConfigurationError` for a row, keyed by attribute name, that would have no key."""
        for column in () if self.numbers_keys else spec.unnumbered:
            name = spec.mapper.get_property_by_column(column).key
            if any(row.get(name) is None for row in rows):
                advice = "mapped_column(Identity(), primary_key=True), or with FetchedValue() if a trigger fills it in"
                raise ConfigurationError(
                    f"{spec.entity.__name__}.{name} has no value, and {self.product.name} generates none: declare"
                    f" {advice}",
                    model=spec.entity,
                )

    def check_blanks(self, spec: QueueSpec, rows: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`.ArgumentError` for a primary key that ends in ignored blanks; rows are keyed by attribute
        name."""
        for column in spec.primary_key if self.drops_blanks else ():
            name = spec.mapper.get_property_by_column(column).key
            for value in (row.get(name) for row in rows):
                if isinstance(value, str) and value.endswith(" "):
                    raise ArgumentError(
                        f"{name}={value!r} ends in a space, which {self.product.name} ignores: it is the same key as"
                        f" {value.rstrip(' ')!r}"
                    )

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        """Return an INSERT that leaves an existing row with the same key unchanged, or updates it by ``replace``.

        Return ``None`` if the engine has no upsert: the caller then tries an UPDATE first.
        """
        return None

    def alike(self, table: Table, same: Sequence[str], different: Sequence[str], timed: str) -> Insert:
        """Return an INSERT, for :meth:`alike_values`, of rows that have the same values in the columns ``same``.  The
        column ``timed`` gets the time of the statement, by the database's clock.
        """
        statement = insert(table).inline()
        if self.sends_values_alone:
            return statement  # the column's default gives the time
        return statement.values({timed: utcnow()})  # a default may be the time of the transaction's start

    def alike_values(self, same: Mapping[str, Any], different: Mapping[str, Sequence[Any]]) -> Values:
        """Return the parameters of :meth:`alike`: the value of each column in all rows, and its values row by row."""
        return [{**same, **dict(zip(different, row, strict=True))} for row in zip(*different.values(), strict=True)]

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Load rows with the engine's bulk protocol, in this transaction; raise :class:`.ArgumentError` if the engine
        has none."""
        raise ArgumentError(f"{self.product.name} has no COPY: leave out copy=True, and the rows are inserted in bulk")


def on_conflict(statement: Any, by: UniqueBy, replace: Replacement | None) -> Insert:
    """Return ``statement`` with the ON CONFLICT clause of PostgreSQL and SQLite."""
    target = {"index_elements": list(by.columns), "index_where": by.predicate}
    if replace is None:
        leaving: Insert = statement.on_conflict_do_nothing(**target)
        return leaving
    values = {column.name: value for column, value in replace(lambda name: statement.excluded[name])}
    replacing: Insert = statement.on_conflict_do_update(**target, set_=values)
    return replacing
