"""Text keys, which every engine compares exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import String
from sqlalchemy.engine import Dialect

from .._support.checks import text
from .wrapped_types import WrappedType


class KeyText(WrappedType[str]):
    """The type of text keys.  It rejects text that engines cannot store or search for, before a statement is sent."""

    impl = String

    def __repr__(self) -> str:
        # Alembic writes the repr into migrations; SQLAlchemy 2.0 omits the collation of a decorated type
        return repr(self.impl_instance)

    @property
    def python_type(self) -> type[str]:
        return str

    def check(self, values: Iterable[object]) -> None:
        """Raise :class:`.ArgumentError` for values that cannot be searched for on every engine."""
        for value in values:
            text("a key", value)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text("a key", value)

    def literal_processor(self, dialect: Dialect) -> Any:
        # SQLAlchemy does not resolve a variant's type through the dialect, and SQL Server needs N'...' for wide text
        write = self.impl_instance.dialect_impl(dialect).literal_processor(dialect)
        return write and (lambda value: write(text("a key", value)))
