"""Columns of a queue that were renamed in the model: revisions rename them too, so that their data is kept."""

from __future__ import annotations

from collections.abc import Mapping

from alembic.operations.ops import AddColumnOp, DropColumnOp, ModifyTableOps
from sqlalchemy import Column

from .._support.exc import ConfigurationError
from ..dialects.parts.schema import LiveIndex
from ..queue.spec import QUEUE_ROLES, QueueSpec, index_name


def renamed(op: ModifyTableOps, spec: QueueSpec, live: Mapping[str, LiveIndex]) -> dict[str, str]:
    """Return the new name of each renamed column, by its old name; empty if the table's indexes show no queue.

    Raises :class:`.ConfigurationError` if a column that every queue has is new, and its old name cannot be determined.
    """
    claim, due = (live.get(index_name(op.table_name, kind)) for kind in ("claim", "due"))
    if claim is None or due is None:
        return {}
    known = {"status": claim.terms[0].name, "finished_at": due.terms[0].name, "available_at": due.terms[1].name}
    dropped = {each.column_name: each.to_column() for each in op.ops if isinstance(each, DropColumnOp)}
    new = {each.column.name for each in op.ops if isinstance(each, AddColumnOp)}
    found: dict[str, str] = {}
    for role in (role for role, column in spec.columns.items() if column.name in new):
        old = next((name for name in (known.get(role), role) if name in dropped), None) or _only(spec[role], dropped)
        if old is not None:
            found[old] = spec[role].name
            del dropped[old]
        elif role in QUEUE_ROLES:
            raise _unknown(op, spec, role)
    return found


def _only(column: Column[object], dropped: Mapping[str, Column[object]]) -> str | None:
    """Return the name of the ``dropped`` column that can only have been ``column``; ``None`` if there is none or
    several."""
    alike = [
        name
        for name, each in dropped.items()
        if each.type._type_affinity is column.type._type_affinity and each.nullable == column.nullable
    ]
    return alike[0] if len(alike) == 1 else None


def _unknown(op: ModifyTableOps, spec: QueueSpec, role: str) -> ConfigurationError:
    table, name = op.table_name, spec[role].name
    return ConfigurationError(
        f"{spec.entity.__name__}: {table} is already a queue but has no column {name} ({role}). Write the migration"
        f" that renames it: op.alter_column({table!r}, '<current name>', new_column_name={name!r}, existing_type=...)",
        model=spec.entity,
    )
