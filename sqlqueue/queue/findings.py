"""The findings of a check of a live database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .spec import QueueSpec

MIGRATE = "migrate: alembic revision --autogenerate, alembic upgrade head"
"""The fix of a schema that is not as declared."""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """The queue cannot work, or would work incorrectly."""
    WARNING = "warning"
    """The queue works, but something may fail or be slow."""
    NOTE = "note"
    """Nothing is wrong; for information only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a piece of information, and what to do about it."""

    severity: Severity
    """The severity."""
    code: str
    """The kind of finding, for programs: ``"missing-index"``.  Does not change between versions."""
    message: str
    """The text of the problem."""
    fix: str
    """The action that fixes it."""
    model: type[Any] | None = None
    """The queue's model; ``None`` if the finding is about the server or the connection."""
    table: str | None = None
    """The table's name, with its schema if it has one."""

    @classmethod
    def of(cls, spec: QueueSpec, severity: Severity, code: str, message: str, fix: str) -> Self:
        """Return a finding about one queue."""
        table = spec.table.fullname
        return cls(severity=severity, code=code, message=message, fix=fix, model=spec.entity, table=table)
