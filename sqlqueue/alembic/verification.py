"""The check, before a migration, of whether the server supports the project's queues."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, MetaData

from ..dialects import adapter_for
from ..model.mixins import queues


def verify(connection: Connection, metadata: MetaData | Sequence[MetaData]) -> None:
    """Raise :class:`.UnsupportedDialectError` if this server does not support the queues of ``metadata``.

    Nothing is changed.  Autogenerate calls this automatically.  For ``alembic upgrade``, call it in ``env.py`` before
    ``context.configure``: most engines do not roll back a migration that fails halfway.
    """
    if not any(queues(each) for each in listed(metadata)):
        return
    within = connection.in_transaction()
    adapter_for(connection.dialect).server.verify(connection)
    if not within:
        connection.rollback()  # otherwise Alembic would take the transaction for the caller's, and not commit it


def listed(metadata: MetaData | Sequence[MetaData] | None) -> Sequence[MetaData]:
    """Return ``metadata`` as a sequence, since a project can have one, several or none."""
    return [metadata] if isinstance(metadata, MetaData) else metadata or ()
