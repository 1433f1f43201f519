"""The engines.  To add one, add an adapter here and a line below, or an entry point ``sqlqueue.dialects`` elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, cast

from sqlalchemy import JSON, URL, BigInteger, ColumnElement, DateTime, String, Text, Unicode, text
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from .._support.errors import UnsupportedDialectError
from ..queue.spec import Criterion
from ..sql import KeyText, Narrower, OfFound, UTCDateTime, utcdefault, utcnow
from .base import Adapter
from .cockroachdb import CockroachDB
from .inspection import Types
from .mssql import SQLServer
from .mysql import MariaDB, MySQL
from .oracle import Oracle
from .postgresql import PostgreSQL
from .sqlite import SQLite

ENTRY_POINTS = "sqlqueue.dialects"
"""The group of entry points.  Each names a class derived from :class:`.Adapter`, which is called without arguments."""

BUILT_IN: tuple[Callable[[], Adapter], ...] = (PostgreSQL, MySQL, MariaDB, SQLServer, Oracle, SQLite, CockroachDB)


@cache
def adapters() -> dict[str, Adapter]:
    """Return all adapters by dialect name.  An adapter from an entry point replaces a built-in one."""
    outside: list[Callable[[], Adapter]] = [each.load() for each in entry_points(group=ENTRY_POINTS)]
    made = [make() for make in (*BUILT_IN, *outside)]
    return {adapter.name: adapter for adapter in made}


def adapter_for(dialect: Dialect) -> Adapter:
    """Return the adapter of an engine's dialect; raise :class:`.UnsupportedDialectError` if there is none."""
    # with a URL of MySQL, the first connection shows that the server is MariaDB
    adapter = adapters().get(MariaDB.product.dialect if getattr(dialect, "is_mariadb", False) else dialect.name)
    if adapter is None:
        raise UnsupportedDialectError(
            f"there is no adapter for the dialect {dialect.name!r}; there are {', '.join(sorted(adapters()))}. A"
            f" package can provide one as an entry point {ENTRY_POINTS!r}.",
            dialect=dialect.name,
            needed=f"an entry point {ENTRY_POINTS!r}",
        )
    return adapter


@compiles(utcnow)
def _compile_utcnow(element: utcnow, compiler: Any, **kw: Any) -> str:
    if compiler.dialect.name == StrCompileDialect.name:  # str(statement), for display
        return f"utcnow{compiler.process(element.clause_expr, **kw)}"
    compiled: str = compiler.process(adapter_for(compiler.dialect).types.now(element.seconds), **kw)
    return compiled


@compiles(OfFound)
def _compile_of_found(element: OfFound, compiler: Any, **kw: Any) -> str:
    is_display = compiler.dialect.name == StrCompileDialect.name
    form = "nested" if is_display else adapter_for(compiler.dialect).rows.of_found
    compiled: str = compiler.process(element.form(form), **kw)
    return compiled


@compiles(Narrower)
def _compile_narrower(element: Narrower, compiler: Any, **kw: Any) -> str:
    concludes = compiler.dialect.name != StrCompileDialect.name and adapter_for(compiler.dialect).rows.concludes
    conditions = list(element.clauses)[: 1 if concludes else 2]
    return " AND ".join(compiler.process(each, **kw) for each in conditions)


@compiles(utcdefault)
def _compile_utcdefault(element: utcdefault, compiler: Any, **kw: Any) -> str:
    if compiler.dialect.name == StrCompileDialect.name:
        return "utcdefault()"
    # without parentheses, most engines accept no expression but CURRENT_TIMESTAMP
    return f"({compiler.process(adapter_for(compiler.dialect).types.default(), **{**kw, 'literal_binds': True})})"


def timestamp_type() -> TypeEngine[Any]:
    """Return the type of times: UTC with microseconds, as aware datetimes, on every engine."""
    return _on_every_engine(UTCDateTime.wrapping(DateTime, timezone=True), lambda types: types.timestamp)


def text_type(length: int) -> TypeEngine[Any]:
    """Return the type of texts of up to ``length`` UTF-16 code units, all of Unicode, on every engine."""
    return _on_every_engine(Unicode(length), lambda types: types.text(length))


def error_type() -> TypeEngine[Any]:
    """Return the type of error texts."""
    return text_type(2000)


def long_text_type() -> TypeEngine[Any]:
    """Return the type of long texts: 65,535 bytes at least, all of Unicode, on every engine."""
    return _on_every_engine(Text(), lambda types: types.long_text)


def serial_type() -> TypeEngine[Any]:
    """Return the type of generated integer keys, of 64 bits, on every engine."""
    return _on_every_engine(BigInteger(), lambda types: types.serial)


def key_type(length: int) -> TypeEngine[Any]:
    """Return the type of keys of up to ``length`` characters, compared character by character on every engine."""
    return _on_every_engine(KeyText.wrapping(String, length=length), lambda types: types.key(length))


def json_type() -> TypeEngine[Any]:
    """Return the JSON type, with each engine's own variant."""
    return _on_every_engine(JSON(), lambda types: types.json)


def _on_every_engine(kind: TypeEngine[Any], variant_of: Callable[[Types], TypeEngine[Any] | None]) -> TypeEngine[Any]:
    """Return ``kind`` with the variants of engines that need another type."""
    for adapter in adapters().values():
        variant = variant_of(adapter.types)
        if variant is not None:
            kind = kind.with_variant(variant, adapter.name)
    return kind


def lasting_keys() -> dict[str, Any]:
    """Return the ``Table`` options, for all engines, that prevent the reuse of generated keys."""
    return {option: value for each in adapters().values() for option, value in each.inspection.lasting_keys.items()}


def index_options(predicate: Criterion) -> dict[str, Any]:
    """Return the options of one ``Index`` for all engines.

    Each option is compiled for its own engine.  As an expression, it would be compiled for the engine on which a
    migration is generated, with that engine's quotes around names.
    """
    return {
        option: text(in_words_of(each.name, criterion))
        for each in adapters().values()
        for option, criterion in each.inspection.index_options(predicate).items()
    }


def in_words_of(name: str, element: ColumnElement[Any]) -> str:
    """Return an expression without bound parameters as SQL of the dialect ``name``."""
    literal = {"literal_binds": True, "include_table": False}
    return str(element.compile(dialect=_dialect(name), compile_kwargs=literal))


@cache
def _dialect(name: str) -> Dialect:
    create: Any = URL.create(name).get_dialect()
    return cast(Dialect, create(paramstyle="named"))  # does not double percent signs
