"""The model in which running workers are registered."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, MetaData, String, Table
from sqlalchemy.orm import Mapped

from ..dialects import json_type, key_type, text_type, timestamp_type
from .columns import LONGEST_NAME
from .companions import CompanionMixin, companion_table

_LONGEST_ID = 32
_LONGEST_COMMAND = 16


def _columns() -> dict[str, dict[str, Any]]:
    required, optional = {"nullable": False}, {"nullable": True}
    return {
        "id": {"type_": key_type(_LONGEST_ID), "primary_key": True},
        "name": {"type_": text_type(LONGEST_NAME), **required},
        "host": {"type_": text_type(LONGEST_NAME), **required},
        "process": {"type_": Integer(), **required},
        "started_at": {"type_": timestamp_type(), **required},
        "seen_at": {"type_": timestamp_type(), **required},
        "version": {"type_": text_type(LONGEST_NAME), **optional},
        "handlers": {"type_": json_type(), **required},
        "last_claim_at": {"type_": timestamp_type(), **optional},
        "memory": {"type_": BigInteger(), **optional},
        "command": {"type_": String(_LONGEST_COMMAND), **optional},
        "concurrency": {"type_": Integer(), **optional},
    }


class WorkerMixin(CompanionMixin):
    """A mixin for the model that registers running workers; :func:`.workers` reads its rows.

    >>> class QueueWorker(WorkerMixin, Base):
    ...     __tablename__ = "queue_worker"

    Declare one for all queues of the same ``MetaData``, in their database. Workers find it automatically. Each writes
    its row every ten seconds, and reads from it the commands that :func:`.drain_workers`, :func:`.stop_workers` and
    :func:`.set_concurrency` write.
    """

    __companion_columns__ = staticmethod(_columns)

    if TYPE_CHECKING:
        id: Mapped[str]
        """A random id for one run of a worker; a restarted worker gets a new row."""
        name: Mapped[str]
        """The worker's name, as stored in ``claimed_by`` of its tasks."""
        host: Mapped[str]
        process: Mapped[int]
        started_at: Mapped[datetime]
        seen_at: Mapped[datetime]
        """When the worker last wrote the row, by the database's clock."""
        version: Mapped[str | None]
        """The version of the application, as given to the worker."""
        handlers: Mapped[list[dict[str, Any]]]
        """The worker's handlers, one object for each, see :class:`.HandlerInfo`."""
        last_claim_at: Mapped[datetime | None]
        memory: Mapped[int | None]
        """The resident memory of the process in bytes."""
        command: Mapped[str | None]
        """``drain`` or ``stop``."""
        concurrency: Mapped[int | None]
        """How many calls each handler runs at a time; ``None``: the number with which it was registered."""


def worker_table(metadata: MetaData) -> Table | None:
    """Return the table in which the workers of the queues of ``metadata`` are registered, if there is one."""
    return companion_table(WorkerMixin, metadata)
