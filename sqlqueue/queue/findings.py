"""What a check of a live database has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .spec import QueueSpec


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The queue cannot work, or would be wrong."""
    WARNING = "warning"
    """It works, and something that was asked for could fail or be slow."""
    NOTE = "note"
    """Nothing is wrong; worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing, and what to do about it."""

    severity: Severity
    """How bad it is."""
    code: str
    """What kind of finding it is, for programs: ``"missing-index"``.  Does not change between versions."""
    message: str
    """What is wrong, for people."""
    fix: str
    """What to do."""
    model: type[Any] | None = None
    """The queue; ``None`` where it is about the server or the connection."""
    table: str | None = None
    """The table's name, with its schema if it has one."""

    @classmethod
    def of(cls, spec: QueueSpec, severity: Severity, code: str, message: str, fix: str) -> Self:
        """A finding about one queue."""
        table = spec.table.fullname
        return cls(severity=severity, code=code, message=message, fix=fix, model=spec.entity, table=table)
