"""What an adapter says of moments: the engine's own clock, and how far one moment is from another."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement


class Moments:
    """The part of an adapter that knows the engine's functions of time."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        """The database's clock in UTC, ``seconds`` later if given."""
        raise NotImplementedError

    def default(self) -> ColumnElement[Any]:
        """The clock in UTC, as the default of a column: for what an INSERT leaves out, in any session's time zone."""
        return self.now(None)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """How many there are from ``earlier`` to ``later``, exactly: a whole number, NULL if one of the two is."""
        raise NotImplementedError
