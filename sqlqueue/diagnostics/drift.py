"""Compares a database with what the models declare: tables, columns, indexes, plans."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    Numeric,
    Select,
    String,
    Table,
    UnaryExpression,
    Uuid,
    bindparam,
    func,
    inspect,
    literal,
    select,
)
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql import operators
from sqlalchemy.types import TypeEngine

from .._support.private import affinity, is_conditional, is_executed
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..dialects.inspection import LiveIndex, QueryPlan, Term
from ..model.companions import history_of, latches_in, pause_table, worker_table
from ..model.declaration import kind_indexes, queues
from ..queue.spec import MIGRATE, Finding, QueueSpec, Severity
from ..sql import KeyText, Pick, lane_picks, picks, sequential_picks, utcdefault

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps


# -- differences between a live schema and what its queues need -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """A part of a live schema that is not what the queue of ``spec`` needs."""

    code: str
    """The code of the finding about it."""
    spec: QueueSpec
    message: str
    """A description for people."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissingColumn(Difference):
    """A difference: ``column`` does not exist."""

    column: Column[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrongIndex(Difference):
    """A difference: ``index``, which the queue's statements use, does not exist, or is not as declared."""

    index: Index
    live: LiveIndex | None
    """The index with this name on the server, if any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrongDefault(Difference):
    """A difference: the default of ``column``, which rows of other programs get, is not the one that the model
    declares."""

    column: Column[Any]
    live: str
    """The default as the server reports it."""


def drift(connection: Connection, specs: Iterable[QueueSpec]) -> list[Difference]:
    """Return how the live schema differs from what ``specs`` need, table by table: columns first, then indexes.

    Reads only the catalog, in the transaction of ``connection``.  Anything else that a table has is ignored.
    Raises :class:`.UnsupportedDialectError` for an engine without an adapter.
    """
    tables = {spec.table: spec for spec in reversed(list(specs))}  # subclasses share their base's
    return [difference for spec in reversed(tables.values()) for difference in _of_table(connection, spec)]


def _of_table(connection: Connection, spec: QueueSpec) -> Iterator[Difference]:
    table = spec.table
    defaults = {column["name"]: column["default"] for column in columns_of(connection, table)}
    if not defaults:
        yield Difference(code="missing-table", spec=spec, message=f"there is no table {table.fullname}")
        return
    for column in spec.columns.values():
        if column.name not in defaults:
            message = f"{table.fullname} has no column {column.name}"
            yield MissingColumn(code="missing-column", spec=spec, message=message, column=column)
            continue
        live = defaults[column.name]
        is_now, is_meant = constant(live), constant(_declared(column))
        if None not in (is_now, is_meant) and is_now != is_meant:
            message = f"the default of {table.fullname}.{column.name} is {is_now}, the model declares {is_meant}"
            yield WrongDefault(code="wrong-default", spec=spec, message=message, column=column, live=str(live))
    for index, found, reason in unlike_indexes(connection, table, queue_indexes(spec)):
        code, message = "wrong-index", f"the index {index.name} of {table.fullname} {reason}"
        if found is None:
            code, message = "missing-index", f"{table.fullname} has no index {index.name}"
        yield WrongIndex(code=code, spec=spec, message=message, index=index, live=found)


def columns_of(connection: Connection, table: Table) -> Sequence[ReflectedColumn]:
    """Return the columns of the live table; none if the table does not exist."""
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    return inspector.get_columns(table.name, schema=schema) if inspector.has_table(table.name, schema=schema) else ()


def _declared(column: Column[Any]) -> str | None:
    default: Any = getattr(column.server_default, "arg", None)
    return f"'{default}'" if isinstance(default, str) else None if default is None else str(default)


def constant(default: str | None) -> str | None:
    """Return the value of a default that is a number or a string, without what the server adds to it; else ``None``.

    ``'available'::character varying`` and ``(('available'))`` are both ``available``.
    """
    found = _CONSTANT.match(default or "")
    return (found[1] or found[2]) if found else None


_CONSTANT = re.compile(r"^[\s(]*(?:N?'([^']*)'|(-?\d+))(?:::[\w ]+)?[\s)]*$")


def unlike_indexes(
    connection: Connection, table: Table, indexes: Iterable[Index]
) -> Iterator[tuple[Index, LiveIndex | None, str]]:
    """Yield the ``indexes`` that the live table lacks or has in another form, each with the live index, if any, and the
    difference in words."""
    adapter = adapter_for(connection.dialect)
    live = adapter.inspection.live_indexes(connection, table)
    for index in indexes:
        found = live.get(str(index.name))
        if found is None:
            yield index, None, "is missing"
        elif not found.usable:
            yield index, found, "is not usable: it was never finished, or is disabled"
        elif found.terms != _terms(index):
            yield index, found, f"is on {_listed(found.terms)}, not on {_listed(_terms(index))}"
        elif index.unique and not found.unique:
            yield index, found, "is not unique"
        elif not adapter.inspection.same_predicate(connection.dialect, index, found):
            having = f"has the condition {found.predicate}" if found.predicate else "has no condition"
            yield index, found, f"{having}, which is not what the model declares"


def fix_of_index(connection: Connection, index: Index, live: LiveIndex | None) -> str:
    """Return the fix for one of :func:`unlike_indexes`."""
    revival = None
    if live is not None and not live.usable:
        revival = adapter_for(connection.dialect).inspection.revival(connection, index)
    return revival or MIGRATE


def needed_indexes(spec: QueueSpec) -> list[Index]:
    """Return the indexes of the table's metadata that the queue cannot work without."""
    by_name = {str(index.name): index for index in spec.table.indexes}
    kinds = ((kind, each) for each in spec.divisions for kind in ("claim", "due")[: 1 if len(each) > 1 else 2])
    names = [spec.index_name(kind, partition) for kind, partition in kinds]
    names += [spec.index_name(index.name) for index in kind_indexes(spec)]
    return [by_name[name] for name in names]


def queue_indexes(spec: QueueSpec) -> list[Index]:
    """Return all indexes that this library adds to the table."""
    return [*needed_indexes(spec), *helpful_indexes(spec)]


def helpful_indexes(spec: QueueSpec) -> list[Index]:
    """Return the indexes that claims do not need, but without which other operations are slow."""
    names = {spec.index_name(kind) for kind in ("errors", "finished")}
    return [index for index in spec.table.indexes if index.name in names]


def lost_indexes(connection: Connection, spec: QueueSpec) -> list[str]:
    """Return the names of the model's own indexes that do not exist, compared by name only."""
    preparer, ours = connection.dialect.identifier_preparer, {index.name for index in queue_indexes(spec)}
    live = {
        preparer.quote(name) for name in adapter_for(connection.dialect).inspection.index_names(connection, spec.table)
    }
    own = [index for index in spec.table.indexes if index.name not in ours and not is_conditional(index)]
    return sorted(str(index.name) for index in own if preparer.format_index(index) not in live)


def lost_triggers(connection: Connection, spec: QueueSpec) -> list[str]:
    """Return the names of the triggers that DDL listeners create on the table and that do not exist.

    Compared by name only, without regard to case.  Empty if this account cannot see triggers.
    """
    declared = list(_declared_triggers(connection, spec.table))
    live = adapter_for(connection.dialect).inspection.trigger_names(connection, spec.table) if declared else None
    if live is None:
        return []
    known, longest = {name.casefold() for name in live}, connection.dialect.max_identifier_length
    # some servers shorten names
    shortened = {name: name.encode()[:longest].decode(errors="ignore") for name in declared}
    return [name for name in shortened if known.isdisjoint({name.casefold(), shortened[name].casefold()})]


def _declared_triggers(connection: Connection, table: Table) -> Iterator[str]:
    mine = {table.schema, connection.schema_for_object(table) or connection.dialect.default_schema_name}
    for target in (table, table.metadata):
        for listener in target.dispatch.after_create:
            if not isinstance(listener, ExecutableDDLElement) or not is_executed(listener, target, connection):
                continue
            for found in _TRIGGER.finditer(str(listener.against(target).compile(dialect=connection.dialect))):
                (*owner, name), (*schema, of) = map(_parts, found.groups())
                # a listener may create triggers of other tables
                place = schema or owner
                if of.casefold() == table.name.casefold() and (place[-1] if place else target.schema) in mine:
                    yield name


def _parts(qualified: str) -> list[str]:
    """Return the parts of a name, without their quotes."""
    names = re.findall(_NAME, qualified)
    return [name[1:-1].replace(name[-1] * 2, name[-1]) if name[0] in '"`[' else name for name in names]


_NAME = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|\[(?:[^\]]|\]\])+\]|[\w$#]+'
_QUALIFIED = rf"(?:{_NAME})(?:\s*\.\s*(?:{_NAME}))*"
# not temporary ones, which end with their connection
_TRIGGER = re.compile(
    r"\bCREATE\s+(?:(?:OR\s+(?:REPLACE|ALTER)|CONSTRAINT|(?:NON)?EDITIONABLE|DEFINER\s*=[^;]+?)\s+)*TRIGGER\s+"
    rf"(?:IF\s+NOT\s+EXISTS\s+)?({_QUALIFIED})\s.*?\bON\s+({_QUALIFIED})",
    re.IGNORECASE | re.DOTALL,
)


def _terms(index: Index) -> tuple[Term, ...]:
    return tuple(_term(expression) for expression in index.expressions)


def _term(expression: Any) -> Term:
    if isinstance(expression, UnaryExpression) and expression.modifier is operators.desc_op:
        return Term(_term(expression.element).name, descending=True)
    return Term(expression.name if isinstance(expression, Column) else str(expression))


def _listed(terms: tuple[Term, ...]) -> str:
    return f"({', '.join(map(str, terms))})"


# -- checks whether the queue's statements can work with the columns of a live table ----------------------------------

_HAS_UNKNOWN = "has a column {} that the model does not declare and every insert must provide"
_MAKES_NO_KEYS = "does not generate keys that inserts leave out: {} is not an identity"
_FAMILIES: tuple[tuple[type[TypeEngine[Any]], ...], ...] = ((String,), (Integer, Numeric), (DateTime,))


def misfits(dialect: Dialect, spec: QueueSpec, live: Sequence[ReflectedColumn]) -> Iterator[Finding]:
    """Yield findings about existing columns, and about missing columns that the model itself declares.

    :func:`.drift` reports missing columns of the queue.
    """
    present = {column["name"]: column for column in live}
    yield from _of_key(dialect, spec, present)
    of_queue = {column.name for column in spec.columns.values()}
    for column in spec.table.columns:
        found = present.pop(column.name, None)
        if found is None:
            if column.name not in of_queue:
                yield _finding(spec, "missing-column", f"has no column {column.name}, which the model loads")
        elif column.name in of_queue:
            yield from _of_column(dialect, spec, column, found)
    for name in _needed(present):
        yield _finding(spec, "unknown-column", _HAS_UNKNOWN.format(name))


def _of_key(dialect: Dialect, spec: QueueSpec, live: Mapping[str, ReflectedColumn]) -> Iterator[Finding]:
    """Yield a finding if the server should generate the keys, but would not."""
    adapter, key = adapter_for(dialect), spec.table.autoincrement_column
    if adapter.rows.numbers_keys or key is None or key.default is not None or key.name not in live:
        return
    if key in spec.unnumbered:
        product = adapter.product.name
        message = (
            f"{spec.table.fullname} has an integer key, {key.name}, which {product} does not generate automatically"
        )
        fix = f"declare {key.name} as mapped_column(Identity(), primary_key=True), and migrate"
        yield Finding.of(spec, Severity.ERROR, "unnumbered-key", message, fix)
    elif not fills_itself(live[key.name]):
        yield _finding(spec, "unnumbered-key", _MAKES_NO_KEYS.format(key.name))


def inexact_keys(spec: QueueSpec, collations: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield findings about keys that the live table does not compare exactly."""
    for column in spec.columns.values():
        collation = collations.get(column.name)
        if isinstance(column.type, KeyText) and collation is not None and not collation.lower().endswith(_EXACT):
            what = f"compares {column.name} by {collation}, which treats some different keys as equal"
            yield _finding(spec, "inexact-key", what, Severity.WARNING)


def inexact_primary_keys(
    spec: QueueSpec, collations: Mapping[str, str | None], exact: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield notes about text columns of the model's own primary key, whose collation is the application's choice."""
    for column in spec.primary_key:
        collation = collations.get(column.name)
        if isinstance(column.type, KeyText) or collation is None or collation.lower().endswith(exact):
            continue
        if issubclass(affinity(column.type) or type(None), Uuid):
            continue  # stored as lowercase hexadecimal digits, which every collation distinguishes
        message = (
            f"{spec.table.fullname} compares {column.name} by {collation}: on_conflict= treats tasks as the same"
            " although their keys differ"
        )
        fix = "nothing, if this is intended; otherwise declare a collation that distinguishes them, and migrate"
        yield Finding.of(spec, Severity.NOTE, "inexact-primary-key", message, fix)


_EXACT = ("_bin", "_bin2")


def _of_column(dialect: Dialect, spec: QueueSpec, column: Column[Any], live: ReflectedColumn) -> Iterator[Finding]:
    name = column.name
    if column.nullable and not live["nullable"]:
        yield _finding(spec, "not-nullable", f"does not allow NULL in {name}, which unclaimed tasks have")
    if not column.nullable and live["nullable"]:
        yield _finding(spec, "nullable", f"allows NULL in {name}, and no claim finds such a row")
    if column.server_default is not None and not fills_itself(live):
        yield _finding(spec, "missing-default", f"has no default for {name}, which inserts rely on")
    elif _is_moment(column) and not adapter_for(dialect).inspection.same_default(dialect, str(live["default"])):
        reason = "for other programs' rows it depends on their session's time zone, or is less precise"
        what = f"has {live['default']} as the default of {name}: {reason}"
        yield _finding(spec, "wrong-default", what, Severity.WARNING)
    for severity, what in wrong_type(dialect, column, live):
        yield _finding(spec, "wrong-type", what, severity)


def wrong_type(dialect: Dialect, column: Column[Any], found: ReflectedColumn) -> Iterator[tuple[Severity, str]]:
    """Yield how the type of a live column differs from that of ``column``, and the severity."""
    implemented: Any = column.type.dialect_impl(dialect)
    declared, live = getattr(implemented, "impl_instance", implemented), found["type"]
    if None in (_family(declared), _family(live)):
        return
    is_not = f"has {column.name} as {live.compile(dialect)}, not as {declared.compile(dialect)}"
    if _family(declared) != _family(live):
        yield Severity.ERROR, is_not
    elif (getattr(live, "length", None) or _ANY) < (getattr(declared, "length", None) or 0):
        yield Severity.ERROR, f"{is_not}: too short"
    elif isinstance(declared, DateTime) and not adapter_for(dialect).inspection.same_moments(dialect, declared, live):
        loses_zone = getattr(declared, "timezone", False) and not getattr(live, "timezone", False)
        severity = Severity.ERROR if loses_zone else Severity.WARNING
        reason = "times shift with the session's time zone" if loses_zone else "times are stored less precisely"
        yield severity, f"{is_not}: {reason}"


def _is_moment(column: Column[Any]) -> bool:
    """Return whether the default of ``column`` is the current time."""
    return isinstance(getattr(column.server_default, "arg", None), utcdefault)


_ANY = 2**62
"""The length of text columns without a limit."""


def _family(kind: object) -> int | None:
    return next((number for number, classes in enumerate(_FAMILIES) if isinstance(kind, classes)), None)


def _needed(live: Mapping[str, ReflectedColumn]) -> list[str]:
    """Return the names of the ``live`` columns that an insert must not leave out."""
    return [name for name, column in live.items() if not column["nullable"] and not fills_itself(column)]


def fills_itself(live: ReflectedColumn) -> bool:
    """Return whether an insert may leave out a live column that is not nullable."""
    generated = (live.get("computed"), live.get("identity"), live.get("autoincrement") is True)
    return live["default"] is not None or any(generated)


_ALTER = "in a migration, alter the column to what the model declares"


def _finding(spec: QueueSpec, code: str, message: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding.of(spec, severity, code, f"{spec.table.fullname} {message}", _ALTER)


# -- checks the tables that accompany queues: the history of attempts, the register of workers and the pauses ---------


def of_companions(connection: Connection, metadata: MetaData) -> Iterator[Finding]:
    """Yield findings about the history, the register of workers and the pauses, if the application has them.

    It is an error if settlements or workers cannot use a table; a missing index only slows reading and pruning
    down.
    """
    history, latches = history_of(metadata), latches_in(metadata)
    tables = {
        "which keeps the history of attempts": history and history.table,
        "in which workers are registered": worker_table(metadata),
        "which stores the paused queues": pause_table(metadata),
        "which stores the batches of all queues": latches and latches.table,
    }
    present = ((table, purpose) for purpose, table in tables.items() if table is not None)
    for table, purpose in present:
        for severity, code, message, fix in _of_companion(connection, table, purpose):
            yield Finding(severity=severity, code=code, message=message, fix=fix, table=table.fullname)


def _of_companion(connection: Connection, table: Table, purpose: str) -> Iterator[tuple[Severity, str, str, str]]:
    """Yield the severity, the code, the message and the fix of each finding."""
    name, error = table.fullname, Severity.ERROR
    live = {column["name"]: column for column in columns_of(connection, table)}
    if not live:
        yield error, "missing-table", f"there is no table {name}, {purpose}", MIGRATE
        return
    makes_keys = adapter_for(connection.dialect).rows.numbers_keys
    for column in table.columns:
        found = live.pop(column.name, None)
        if found is None:
            yield error, "missing-column", f"{name} has no column {column.name}", MIGRATE
            continue
        if column.nullable and not found["nullable"]:
            yield error, "not-nullable", f"{name} does not allow NULL in {column.name}", _ALTER
        if column is table.autoincrement_column and not (makes_keys or fills_itself(found)):
            yield error, "unnumbered-key", f"{name} {_MAKES_NO_KEYS.format(column.name)}", _ALTER
        for severity, what in wrong_type(connection.dialect, column, found):
            yield severity, "wrong-type", f"{name} {what}", _ALTER
    for unknown in _needed(live):
        yield error, "unknown-column", f"{name} {_HAS_UNKNOWN.format(unknown)}", _ALTER
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    for index, live_index, reason in unlike_indexes(connection, table, indexes):
        code = "missing-index" if live_index is None else "wrong-index"
        fix = fix_of_index(connection, index, live_index)
        yield Severity.WARNING, code, f"the index {index.name} of {name} {reason}", fix


# -- checks whether claims use their indexes, by explaining the library's own statements at the tables' current
#    size

LARGE = 10_000
"""A number of rows that no planner would read to find one, unless it lacks an index or good statistics."""

FEW = 100
"""A number of rows that is cheap to sort: engines that lock after the sort may choose to sort them."""


def unserved_claims(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about claims that do not, or cannot, use the indexes of a queue whose schema is correct."""
    for claim, pick, statement in _statements(connection, adapter, spec) if spec.holds_tasks else ():
        plan = adapter.inspection.plan(connection, statement)
        if plan is None:
            message = f"whether claims from {spec.table.fullname} use their indexes is not checked on this engine"
            yield Finding.of(spec, Severity.NOTE, "plan-not-asked", message, "nothing: the indexes exist as declared")
            return
        best = adapter.inspection.plan(connection, statement, forced=True)
        unused = f"{claim} {spec.table.fullname} does not use the index {pick.index}"
        if not _serves(best or plan, spec, 0):
            certain = best is not None or not adapter.rows.locks_after_sorting or _is_large(connection, spec)
            yield _useless(spec, unused, Severity.ERROR if certain else Severity.NOTE)
        elif not _serves(plan, spec, FEW) and _is_large(connection, spec):
            fix = f"update the planner's statistics: ANALYZE {spec.table.fullname}"
            yield Finding.of(spec, Severity.ERROR, "index-not-used", f"{unused}, though it could", fix)


def _useless(spec: QueueSpec, unused: str, severity: Severity) -> Finding:
    if severity is Severity.NOTE:
        message = f"{unused}; with so few rows, that may be the best plan"
        return Finding.of(spec, severity, "index-not-used", message, "check again when the table has grown")
    message = f"{unused}: it reads tasks that it does not take, and blocks others on engines that lock what they read"
    fix = "compare that index and its columns with what the model declares: collations, prefixes, types"
    return Finding.of(spec, severity, "index-not-used", message, fix)


def _statements(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[tuple[str, Pick, Select[Any]]]:
    """Yield what claims read, how it is called, and the statement."""
    for pick in _claims(spec):
        yield "a claim from", pick, adapter.rows.select_for_claim(pick, *spec.primary_key)
    if spec.keyed_by is None:
        return
    column: Any = spec.keyed_by
    pick = (sequential_picks(spec) if spec.lane is None else lane_picks(spec))[0](1)
    example = bindparam(None, _example(column), column.type)
    further = pick.keys(column > example, 1)
    yield "a claim that looks for the next key of", further, adapter.rows.select_candidates(further, column)
    # a key that has tasks: of another, a planner expects no tasks that it would have to sort
    known = connection.scalar(adapter.rows.select_candidates(pick.keys(column.is_not(None), 1), column))
    first = adapter.rows.lane(pick, example if known is None else bindparam(None, known, column.type), 1)
    yield "a claim of a key of", first, adapter.rows.select_candidates(first, *spec.primary_key)


def _claims(spec: QueueSpec) -> Iterator[Pick]:
    """Yield the parts of both steps of a claim of one row, from the whole queue and from each kind of partition."""
    for partition in ((), *((column,) for column in spec.partitions)):
        for step in picks(spec, [column == bindparam(None, _example(column), column.type) for column in partition], ()):
            yield from step(1).parts


def _example(column: Column[Any]) -> Any:
    try:
        example = column.type.python_type()
    except (NotImplementedError, TypeError):  # e.g. datetime: any value will do
        return None
    return "any" if example == "" else example  # which some servers take for NULL, so that their plan reads nothing


def _serves(plan: QueryPlan, spec: QueueSpec, sortable: int) -> bool:
    used = not plan.indexes.isdisjoint(str(index.name) for index in needed_indexes(spec))
    return used and plan.sorted <= sortable


def _is_large(connection: Connection, spec: QueueSpec) -> bool:
    some = select(literal(1).label("one")).select_from(spec.table).limit(LARGE).subquery()
    return connection.scalar(select(func.count()).select_from(some)) == LARGE


# -- checks the tables that refer to queues: whoever deletes a task makes the server look for its children ------------


def unindexed_references(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about foreign keys without an index that refer to a queue whose tasks are deleted.

    Only tables of the same ``MetaData`` are considered.
    """
    options = spec.options
    cost = adapter.inspection.unindexed_reference(connection)
    if cost is None or (options.on_complete != "delete" and not options.prunes):
        return
    for child in _referring(spec.table):
        if not columns_of(connection, child):
            continue
        inspector, schema = inspect(connection), connection.schema_for_object(child)
        indexed = list(_indexed(connection, adapter, child))
        for key in inspector.get_foreign_keys(child.name, schema=schema):
            columns = key["constrained_columns"]
            if key["referred_table"] != spec.table.name or any(
                {*some[: len(columns)]} == {*columns} for some in indexed
            ):
                continue
            listed = ", ".join(columns)
            message = (
                f"{child.fullname} refers to {spec.table.fullname} by {listed}, which has no index: each task that is"
                f" deleted {cost}"
            )
            fix = f"declare an index whose first columns are {listed}, such as index=True, and migrate"
            yield Finding.of(spec, Severity.WARNING, "unindexed-reference", message, fix)


def _referring(table: Table) -> Iterator[Table]:
    for child in sorted(table.metadata.tables.values(), key=lambda each: each.fullname):
        targets = {key.target_fullname.rpartition(".")[0] for key in child.foreign_keys}
        if table.fullname in targets:
            yield child


def _indexed(connection: Connection, adapter: Adapter, table: Table) -> Iterator[Sequence[str]]:
    """Yield the columns of each live index, of a primary key or otherwise, that finds rows by any value."""
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    yield inspector.get_pk_constraint(table.name, schema=schema)["constrained_columns"]
    for constraint in inspector.get_unique_constraints(table.name, schema=schema):
        yield constraint["column_names"]
    for index in adapter.inspection.live_indexes(connection, table).values():
        names = [term.name for term in index.terms]
        partial = index.predicate and _NOT_NULL.fullmatch(index.predicate)
        if index.usable and (index.predicate is None or (partial and partial[1] in names)):
            yield names


_NOT_NULL = re.compile(r"\W*(\w+)\W+IS NOT NULL\W*", re.IGNORECASE)
"""The condition of an index that still finds all rows that refer to others."""


# -- a guard for Alembic before 1.18, which loads no plugins: existing rows of a table that becomes a queue would
#    be tasks


def watch() -> None:
    """Make autogenerate reject such revisions, if an old Alembic was imported before the models."""
    if "alembic" in sys.modules and find_spec("alembic.runtime.plugins") is None:
        from alembic.autogenerate import comparators  # noqa: PLC0415

        comparators.dispatch_for("schema")(refuse_adoption)


def refuse_adoption(context: AutogenContext, found: UpgradeOps, _: Any) -> None:
    """Raise ``CommandError`` if an existing table gets the columns of a queue."""
    from alembic.operations.ops import AddColumnOp, ModifyTableOps  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    given: Any = context.metadata
    specs = [spec for each in (given if isinstance(given, (list, tuple)) else [given]) for spec in queues(each)]
    states = {(spec.table.schema, spec.table.name, spec["status"].name) for spec in specs}
    for op in found.ops:
        for added in op.ops if isinstance(op, ModifyTableOps) else ():
            if isinstance(added, AddColumnOp) and (added.schema, added.table_name, added.column.name) in states:
                raise CommandError(
                    f"{added.table_name} becomes a queue, and workers would run all of its rows as tasks: upgrade to"
                    " Alembic 1.18 or newer, which loads sqlqueue's plugin, so that the rows become completed"
                )
