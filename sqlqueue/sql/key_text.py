"""Text keys, which every engine compares exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from .._support.checks import text


class KeyText(TypeDecorator[str]):
    """The type of text keys. It rejects text that engines cannot store or search for, before a statement is sent.

    Values are stored by the SQLAlchemy type that it wraps; see :func:`key_text`, which creates its classes.
    """

    impl = String
    cache_ok = True

    def __reduce__(self) -> tuple[Any, ...]:
        # by the wrapped type: the class cannot be imported by its name
        kept = ("impl", "impl_instance", "_variant_mapping")
        return key_text, (type(self).impl,), {name: value for name, value in self.__dict__.items() if name in kept}

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


def key_text(stock: type[TypeEngine[Any]], **arguments: Any) -> KeyText:
    """Return a :class:`KeyText` with the module and name of ``stock``, for migrations; see :func:`.utc`."""
    cls = type(stock.__name__, (KeyText,), {"impl": stock, "cache_ok": True, "__module__": stock.__module__})
    instance: KeyText = cls(**arguments)
    return instance
