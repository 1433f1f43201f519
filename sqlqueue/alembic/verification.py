"""Whether a server can carry the queues of a project, asked before a migration."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, MetaData

from ..dialects import adapter_for
from ..model.mixins import queues


def verify(connection: Connection, metadata: MetaData | Sequence[MetaData]) -> None:
    """:class:`.UnsupportedDialectError` if this server cannot carry the queues of ``metadata``.  Changes nothing.

    Autogenerate asks by itself.  For ``alembic upgrade``, call it in ``env.py`` before ``context.configure``: most
    engines do not roll back half a migration.
    """
    if not any(queues(each) for each in listed(metadata)):
        return
    within = connection.in_transaction()
    adapter_for(connection.dialect).server.verify(connection)
    if not within:
        connection.rollback()  # Alembic leaves a transaction that has begun for its beginner to commit


def listed(metadata: MetaData | Sequence[MetaData] | None) -> Sequence[MetaData]:
    """All of ``metadata``, of which a project may have one, several or none."""
    return [metadata] if isinstance(metadata, MetaData) else metadata or ()
