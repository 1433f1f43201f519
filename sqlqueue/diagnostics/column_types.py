"""Checks whether the queue's statements can work with the columns of a live table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, DateTime, Dialect, Integer, Numeric, String, Uuid
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.types import TypeEngine

from ..dialects import adapter_for
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec
from ..sql.clock import utcdefault
from ..sql.key_text import KeyText

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
    for unknown in present.values():
        if not unknown["nullable"] and not fills_itself(unknown):
            what = f"has a column {unknown['name']} that the model does not declare and every insert must provide"
            yield _finding(spec, "unknown-column", what)


def _of_key(dialect: Dialect, spec: QueueSpec, live: Mapping[str, ReflectedColumn]) -> Iterator[Finding]:
    """Yield a finding if the server should generate the keys, but would not."""
    adapter, key = adapter_for(dialect), spec.table.autoincrement_column
    if adapter.inserts.numbers_keys or key is None or key.default is not None or key.name not in live:
        return
    if key in spec.unnumbered:
        product = adapter.product.name
        message = (
            f"{spec.table.fullname} has an integer key, {key.name}, which {product} does not generate automatically"
        )
        fix = f"declare {key.name} as mapped_column(Identity(), primary_key=True), and migrate"
        yield Finding.of(spec, Severity.ERROR, "unnumbered-key", message, fix)
    elif not fills_itself(live[key.name]):
        yield _finding(
            spec, "unnumbered-key", f"does not generate keys that inserts leave out: {key.name} is not an identity"
        )


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
        if issubclass(column.type._type_affinity or type(None), Uuid):
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
    elif _is_moment(column) and not adapter_for(dialect).schema.same_default(dialect, str(live["default"])):
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
    elif isinstance(declared, DateTime) and not adapter_for(dialect).schema.same_moments(dialect, declared, live):
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


def fills_itself(live: ReflectedColumn) -> bool:
    """Return whether an insert may leave out a live column that is not nullable."""
    generated = (live.get("computed"), live.get("identity"), live.get("autoincrement") is True)
    return live["default"] is not None or any(generated)


def _finding(spec: QueueSpec, code: str, message: str, severity: Severity = Severity.ERROR) -> Finding:
    fix = "in a migration, alter the column to what the model declares"
    return Finding.of(spec, severity, code, f"{spec.table.fullname} {message}", fix)
