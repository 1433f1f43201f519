"""Tables that a worker needs besides its queues."""

from __future__ import annotations

from sqlalchemy import Table, inspect
from sqlalchemy.orm import Session

from ..._support.exc import SchemaMismatchError
from ...queue.spec import QueueSpec


def verify_table(session: Session, spec: QueueSpec, table: Table, purpose: str) -> None:
    """Raise :class:`.SchemaMismatchError` if ``table`` is missing; ``purpose`` describes what it is for."""
    connection = session.connection(spec.bind_arguments)
    if not inspect(connection).has_table(table.name, schema=connection.schema_for_object(table)):
        raise SchemaMismatchError(
            f"there is no table {table.fullname}, {purpose}: migrate with alembic revision --autogenerate and alembic"
            " upgrade head",
            differences=[f"missing table {table.fullname}"],
        )
