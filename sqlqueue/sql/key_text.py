"""Keys as text: compared to the letter on every engine."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from .._support.checks import text


class KeyText(TypeDecorator[str]):
    """Refuses what no engine can store, or be asked for, before a statement is sent.

    What is stored is the stock type beneath.  Its classes are made by :func:`key_text`.
    """

    impl = String
    cache_ok = True

    def __reduce__(self) -> tuple[Any, ...]:
        # by what it stores: its class cannot be found under the name that it goes by
        kept = ("impl", "impl_instance", "_variant_mapping")
        return key_text, (type(self).impl,), {name: value for name, value in self.__dict__.items() if name in kept}

    def __repr__(self) -> str:
        # as Alembic writes it; of a decorated type SQLAlchemy 2.0 leaves out the collation
        return repr(self.impl_instance)

    @property
    def python_type(self) -> type[str]:
        return str

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text("a key", value)

    def literal_processor(self, dialect: Dialect) -> Any:
        # by way of the dialect, which SQLAlchemy does not ask about a variant: SQL Server writes N'...' for wide text
        write = self.impl_instance.dialect_impl(dialect).literal_processor(dialect)
        return write and (lambda value: write(text("a key", value)))


def key_text(stock: type[TypeEngine[Any]], **arguments: Any) -> KeyText:
    """A :class:`KeyText` that goes by the name of ``stock``, for the sake of migrations; see :func:`.utc`."""
    cls = type(stock.__name__, (KeyText,), {"impl": stock, "cache_ok": True, "__module__": stock.__module__})
    instance: KeyText = cls(**arguments)
    return instance
