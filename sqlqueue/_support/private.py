"""What the package uses that is private in SQLAlchemy and in Python: each has a test that shows what it does.

Adapters use private attributes of their drivers in the modules of their engines; ``tests/drivers`` has tests of them.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from traceback import TracebackException
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Dialect,
    ExecutableDDLElement,
    FromClause,
    Index,
    MetaData,
    Table,
    Update,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql.base import Executable, ExecutableOption
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import immutabledict


def run_exit_functions() -> None:
    """Call what the application has registered with :mod:`atexit`, such as the export of its last spans.

    Not every version of :mod:`multiprocessing` does so at the end of a process.
    """
    atexit._run_exitfuncs()


def is_flushing(session: Session) -> bool:
    """Return whether this runs in a listener of a flush, in which the session cannot flush."""
    return session._flushing


def tables_in(expression: ColumnElement[Any]) -> set[FromClause]:
    """Return the tables whose columns ``expression`` contains, without those of its subqueries."""
    return set(expression._from_objects)


def options_of(statement: Executable) -> Sequence[ExecutableOption]:
    """Return the options that ``statement`` was given with ``options()``."""
    return statement._with_options


def configured_level(dialect: Dialect) -> str | None:
    """Return the ``isolation_level`` that ``create_engine`` was given."""
    level: str | None = getattr(dialect, "_on_connect_isolation_level", None)
    return level


def criteria_of(statement: Update | Delete) -> Sequence[ColumnElement[Any]]:
    """Return the criteria that ``statement`` was given with ``where()``."""
    return statement._where_criteria


def hints_of(statement: Update | Delete) -> Sequence[str]:
    """Return the hints that ``statement`` was given with ``with_hint()``."""
    return list(statement._hints.values())


def without_criteria(statement: Update | Delete) -> Update | Delete:
    """Return a copy of ``statement`` without its criteria and hints."""
    bare = statement._clone()
    bare._where_criteria, bare._hints = (), immutabledict()
    return bare


def entity_criteria(options: Iterable[ExecutableOption], mapper: Mapper[Any]) -> Iterator[Any]:
    """Yield the criteria on ``mapper`` of those ``options`` that are made by ``with_loader_criteria``."""
    found: dict[Any, list[Any]] = {}
    for option in options:
        if getattr(option, "_is_criteria_option", False):
            option.get_global_criteria(found)  # type: ignore[attr-defined]
    for option in found.get(("additional_entity_criteria", mapper), ()):
        yield option._resolve_where_criteria(mapper)


def cached_with(attribute: str) -> list[Any]:
    """Return the ``_traverse_internals`` of a function whose compiled form also depends on ``attribute``."""
    return [*FunctionElement._traverse_internals, (attribute, InternalTraversal.dp_plain_obj)]


def affinity(type_: TypeEngine[Any]) -> type[TypeEngine[Any]] | None:
    """Return the general type that ``type_`` is a form of, such as ``String`` for ``Text``."""
    return type_._type_affinity


def variants_of(type_: TypeEngine[Any]) -> Mapping[str, TypeEngine[Any]]:
    """Return the types that ``type_`` was given with ``with_variant()``, by the names of their dialects."""
    return type_._variant_mapping


def without_variants(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a copy of ``type_`` as it was before ``with_variant()``."""
    base = type_.copy()
    base._variant_mapping = immutabledict()
    return base


def is_conditional(index: Index) -> bool:
    """Return whether ``index`` has a condition, from ``Index.ddl_if()``, and thus may be meant for another engine."""
    return index._ddl_if is not None


def is_executed(listener: ExecutableDDLElement, target: Table | MetaData, connection: Connection) -> bool:
    """Return whether ``listener`` executes its DDL when ``target`` is created, as it decides itself when called."""
    executed: bool = listener._should_execute(target, connection)  # type: ignore[no-untyped-call]
    return executed


def set_message(formatted: TracebackException, message: str) -> None:
    """Replace the error's message that ``formatted`` shows."""
    formatted._str = message  # type: ignore[attr-defined]
