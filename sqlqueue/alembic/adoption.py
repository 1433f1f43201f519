"""What the rows of a table become when it is made a queue: the values that its new columns have in them.

A column is added with a constant default, which is what existing rows have from then on, and gets the default of the
model in a second step.  Both change the catalog alone on PostgreSQL, MySQL and MariaDB: no row is written, and no lock
lasts.  (A default that is an expression would have MySQL copy the table.)
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
"""In texts that have no default and take no NULL.  Not empty: to Oracle that is NULL."""


class MomentDefault(DefaultClause):
    """A default that a revision says in Python: SQLAlchemy spells it as each engine needs it."""

    def __init__(self, python: str) -> None:
        super().__init__(python)
        self.python = python


_NEVER = f"datetime.datetime({NEVER.year}, {NEVER.month}, {NEVER.day})"
_NOW = "datetime.datetime.now(datetime.timezone.utc)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """A table becomes a queue, or a queue ceases to be one."""

    status: str
    """The name of the column."""
    available_at: str
    """The name of the column."""
    becomes: Status

    def default(self, column: Column[Any]) -> Any:
        """What ``column`` has in rows that are there already."""
        if column.name == self.status:
            return self.becomes.value
        if column.name == self.available_at and self.becomes in FINAL:
            return MomentDefault(_NEVER)
        if isinstance(getattr(column.type, "impl", column.type), DateTime) and not column.nullable:
            return MomentDefault(_NOW)
        return initial_default(column)


def initial_default(column: Column[Any]) -> Any:
    """What ``column`` has in rows that are there already, in a table that has been a queue before."""
    is_open = column.server_default is None and not column.nullable
    return _PLACEHOLDER if is_open and column.type.python_type is str else column.server_default


def added(columns: Sequence[Column[Any]], adoption: Adoption | None) -> list[Column[Any]]:
    """The ``columns`` as they are added."""
    default = initial_default if adoption is None else adoption.default
    return [Column(each.name, each.type, server_default=default(each), nullable=each.nullable) for each in columns]


def render_default(context: AutogenContext, default: Any) -> str:
    """The Python of a default that is a constant: a text, SQL, or a moment."""
    prefix = context.opts["sqlalchemy_module_prefix"] or ""
    if isinstance(default, MomentDefault):
        context.imports.add("import datetime")
        # a column that keeps the zone would take a moment without one for the session's
        zoneless = tuple(sorted(name for name, adapter in adapters().items() if adapter.types.timestamp is not None))
        here = f"{context.opts['alembic_module_prefix'] or ''}get_context().dialect.name"
        zone = f"None if {here} in {zoneless!r} else datetime.timezone.utc"
        return f"{prefix}literal({default.python}.replace(tzinfo={zone}))"
    value = getattr(default, "arg", default)
    return f"{prefix}text({str(value)!r})" if isinstance(value, TextClause) else repr(value)


def render_item(context: AutogenContext) -> Any:
    """The project's own ``render_item``, and before it one that knows of :class:`MomentDefault`."""
    given = context.opts.get("render_item")

    def render(kind: str, item: Any, context: AutogenContext) -> Any:
        if isinstance(item, MomentDefault):
            return render_default(context, item)
        return given(kind, item, context) if given else False

    return render
