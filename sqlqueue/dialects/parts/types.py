"""Column types that differ between engines, and the engine's clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, func
from sqlalchemy.types import TypeEngine


class Types(ABC):
    """Column types and time functions."""

    timestamp: ClassVar[TypeEngine[Any] | None] = None
    """The type of times, if ``DateTime(timezone=True)`` loses microseconds or the zone; otherwise ``None``."""
    long_text: ClassVar[TypeEngine[Any] | None] = None
    """The type of long texts, if ``Text`` cannot store all of Unicode, or 65,535 bytes; otherwise ``None``."""
    serial: ClassVar[TypeEngine[Any] | None] = None
    """The type of generated keys, if the engine does not generate keys of the type ``BigInteger``; otherwise
    ``None``."""
    json: ClassVar[TypeEngine[Any] | None] = None
    """The type of JSON, if some versions of SQLAlchemy or the engine lack ``JSON``; otherwise ``None``."""

    def text(self, length: int) -> TypeEngine[Any] | None:
        """Return the type of texts of up to ``length`` characters, if ``Unicode`` cannot store all of Unicode."""
        return None

    def key(self, length: int) -> TypeEngine[Any] | None:
        """Return the type of keys of up to ``length`` characters, if ``String`` equates different keys."""
        return None

    @abstractmethod
    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        """Return the database's clock in UTC, ``seconds`` later if given."""

    def default(self) -> ColumnElement[Any]:
        """Return the database's clock in UTC as the default of a column, regardless of the session's time zone."""
        return self.now(None)

    @abstractmethod
    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the exact number of microseconds from ``earlier`` to ``later``, an integer; NULL if either is NULL or
        infinite."""

    def remainder(self, number: ColumnElement[int], divisor: ColumnElement[int]) -> ColumnElement[int]:
        """Return the remainder of the division of two positive integers."""
        return number % divisor

    def beginning(self, text: ColumnElement[str], length: int) -> ColumnElement[str]:
        """Return the first ``length`` characters of ``text``."""
        return func.substr(text, 1, length, type_=text.type)
