"""The check, before a migration, of whether the server supports the project's queues."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, MetaData

from ..dialects import adapter_for
from ..model.mixins import queues


def verify(connection: Connection, metadata: MetaData | Sequence[MetaData]) -> None:
    """Raise :class:`.UnsupportedDialectError` if this server does not support the queues of ``metadata``.

    It changes nothing.  Autogenerate calls it by itself.  For ``alembic upgrade``, call it in ``env.py`` before
    ``context.configure``: most engines do not roll back a migration that fails halfway.
    """
    if not any(queues(each) for each in listed(metadata)):
        return
    within = connection.in_transaction()
    adapter_for(connection.dialect).server.verify(connection)
    if not within:
        connection.rollback()  # Alembic would leave a transaction that had begun for the caller to commit


def listed(metadata: MetaData | Sequence[MetaData] | None) -> Sequence[MetaData]:
    """Return ``metadata``, of which a project may have one, several or none, as a sequence."""
    return [metadata] if isinstance(metadata, MetaData) else metadata or ()
