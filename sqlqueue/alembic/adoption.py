"""Adoption of existing rows when a table becomes a queue: the values of the new columns in these rows.

A column is added with a constant default, whose value existing rows keep, and gets the model's default in a second
step.  On PostgreSQL, MySQL and MariaDB both steps change only the catalog: they write no rows and hold locks only
briefly.  With an expression as the default, MySQL would copy the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Column, DateTime, DefaultClause, TextClause

from ..dialects import adapters
from ..queue.status import FINAL, Status
from ..sql.clock import NEVER

_PLACEHOLDER = "-"
"""The value of text columns that have no default and are not nullable.  Oracle would treat an empty string as NULL."""


class MomentDefault(DefaultClause):
    """A default written into a revision as a Python expression, so that SQLAlchemy renders it for each engine."""

    def __init__(self, python: str) -> None:
        super().__init__(python)
        self.python = python


_NEVER = f"datetime.datetime({NEVER.year}, {NEVER.month}, {NEVER.day})"
_NOW = "datetime.datetime.now(datetime.timezone.utc)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The conversion of a table's existing rows to tasks."""

    status: str
    """The name of the status column."""
    available_at: str
    """The name of the ``available_at`` column."""
    becomes: Status
    """The status of the existing rows."""

    def default(self, column: Column[Any]) -> Any:
        """Return the value of ``column`` in existing rows."""
        if column.name == self.status:
            return self.becomes.value
        if column.name == self.available_at and self.becomes in FINAL:
            return MomentDefault(_NEVER)
        if isinstance(getattr(column.type, "impl", column.type), DateTime) and not column.nullable:
            return MomentDefault(_NOW)
        return initial_default(column)


def initial_default(column: Column[Any]) -> Any:
    """Return the value of ``column`` in existing rows of a table that is already a queue."""
    is_open = column.server_default is None and not column.nullable
    return _PLACEHOLDER if is_open and column.type.python_type is str else column.server_default


def added(columns: Sequence[Column[Any]], adoption: Adoption | None) -> list[Column[Any]]:
    """Return copies of ``columns`` with the defaults for existing rows."""
    default = initial_default if adoption is None else adoption.default
    return [Column(each.name, each.type, server_default=default(each), nullable=each.nullable) for each in columns]


def render_default(context: AutogenContext, default: Any) -> str:
    """Return the Python source of a constant default: a string, SQL, or a time."""
    prefix = context.opts["sqlalchemy_module_prefix"] or ""
    if isinstance(default, MomentDefault):
        context.imports.add("import datetime")
        # a column with a time zone would read a naive time as local to the session
        zoneless = tuple(sorted(name for name, adapter in adapters().items() if adapter.types.timestamp is not None))
        here = f"{context.opts['alembic_module_prefix'] or ''}get_context().dialect.name"
        zone = f"None if {here} in {zoneless!r} else datetime.timezone.utc"
        return f"{prefix}literal({default.python}.replace(tzinfo={zone}))"
    value = getattr(default, "arg", default)
    return f"{prefix}text({str(value)!r})" if isinstance(value, TextClause) else repr(value)
