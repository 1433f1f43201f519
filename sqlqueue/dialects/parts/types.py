"""The types of columns that differ between engines, and the engine's clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine


class Types(ABC):
    """Types, and functions of time."""

    timestamp: ClassVar[TypeEngine[Any] | None] = None
    """The type of moments, where ``DateTime(timezone=True)`` loses microseconds or the zone."""
    error_text: ClassVar[TypeEngine[Any] | None] = None
    """The type of errors, where ``String`` does not hold all of Unicode."""
    json: ClassVar[TypeEngine[Any] | None] = None
    """The type of JSON, where ``JSON`` is not to be had in all versions of SQLAlchemy and of the engine."""

    def key(self, length: int) -> TypeEngine[Any] | None:
        """Return the type of keys of ``length`` characters at the most, where ``String`` confuses different ones."""
        return None

    @abstractmethod
    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        """Return the database's clock in UTC, ``seconds`` later if given."""

    def default(self) -> ColumnElement[Any]:
        """Return the clock in UTC as the default of a column, for any session's time zone."""
        return self.now(None)

    @abstractmethod
    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the exact number from ``earlier`` to ``later``: a whole number, NULL if one of the two is."""
