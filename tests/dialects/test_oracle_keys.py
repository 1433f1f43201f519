"""Oracle generates no integer key by default: a model that relies on it is reported before a row is rejected."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import FetchedValue, Identity, Integer, Sequence
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import FlushError
from sqlalchemy.schema import CreateTable

from sqlqueue import ArgumentError, ConfigurationError, QueueSession, RecurringMixin, UniqueMixin
from sqlqueue.diagnostics.drift import misfits
from sqlqueue.dialects import adapters
from sqlqueue.model.declaration import check_values, queues
from sqlqueue.queue.spec import QueueSpec
from sqlqueue.sql import KeyText
from tests.dialects.recorder import recording_engine
from tests.dialects.test_pinned import ENGINES, PINNED
from tests.support.models import Base as Models

PROJECT = Path(__file__).parents[2]
CALLS: list[Callable[[QueueSession, type[Any]], object]] = [
    lambda session, model: (session.add(model()), session.flush()),
    lambda session, model: session.enqueue(model()),
    lambda session, model: session.enqueue(model, [{"unique_key": "a"}, {"id": 7}]),
    lambda session, model: session.enqueue(model, [{"unique_key": "a"}], on_conflict="ignore"),
    lambda session, model: session.declare_schedules(model, [{"unique_key": "a", "schedule": "PT60S"}]),
]


def made(*arguments: Any, **options: Any) -> type[Any]:
    """Return a model with this declaration of its key."""

    class Base(DeclarativeBase):
        pass

    class Thing(UniqueMixin, RecurringMixin, Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(*arguments, primary_key=True, **options)

    return Thing


def session_on(name: str) -> QueueSession:
    engine, _ = recording_engine(*ENGINES[name])
    return QueueSession(engine)


FILLED = [
    pytest.param(lambda: made(Identity()), id="identity"),
    pytest.param(lambda: made(Sequence("thing_id")), id="sequence"),
    pytest.param(lambda: made(server_default=FetchedValue()), id="trigger"),
    pytest.param(lambda: made(default=lambda: 7), id="made here"),
]


@pytest.mark.parametrize("call", CALLS, ids=["flush", "enqueue", "rows", "ignore", "declare"])
def test_a_row_without_a_key_is_rejected(call: Callable[[QueueSession, type[Any]], object]) -> None:
    model = made()
    with session_on("oracle") as session, pytest.raises(ConfigurationError, match=r"Thing\.id .*Identity") as refused:
        call(session, model)
    assert refused.value.model is model


@pytest.mark.parametrize("make", FILLED)
@pytest.mark.parametrize("call", CALLS[:3], ids=["flush", "enqueue", "rows"])
def test_a_key_that_is_made_is_not(make: Callable[[], type[Any]], call: Callable[..., object]) -> None:
    # there is no server that could return a generated key
    with session_on("oracle") as session, suppress(FlushError):
        call(session, make())


def test_a_given_key_is_accepted() -> None:
    model = made()
    with session_on("oracle") as session:
        session.enqueue(model, [{"id": 7}, {"id": 8}])
        with suppress(FlushError):
            session.enqueue(model(id=9))


@pytest.mark.parametrize("name", sorted({*adapters()} & {*ENGINES} - {"oracle"}))
def test_other_engines_generate_the_key(name: str) -> None:
    if name == "cockroachdb":
        pytest.importorskip("sqlalchemy_cockroachdb")
    with session_on(name) as session:
        session.enqueue(made(), [{"unique_key": "a"}])


# -- a live table --------------------------------------------------------------------------------------------------


def codes(model: type[Any], *, name: str = "oracle", identity: bool = False) -> list[tuple[str, str]]:
    engine, _ = recording_engine(*ENGINES[name])
    live: ReflectedColumn = {"name": "id", "type": Integer(), "nullable": False, "default": None}
    if identity:
        live["identity"] = {"start": 1}  # type: ignore[typeddict-item]
    found = misfits(engine.dialect, model.__queue_spec__, [live])
    return [(finding.severity, finding.fix) for finding in found if finding.code == "unnumbered-key"]


@pytest.mark.parametrize("identity", [False, True])
def test_a_model_that_leaves_its_key_to_the_server_is_an_error(identity: bool) -> None:
    ((severity, fix),) = codes(made(), identity=identity)
    assert severity == "error"
    assert "Identity()" in fix


def test_a_table_that_makes_no_keys_is_an_error() -> None:
    ((severity, fix),) = codes(made(Identity()))
    assert severity == "error"
    assert "migration" in fix
    assert codes(made(Identity()), identity=True) == []


@pytest.mark.parametrize("make", FILLED[1:])
def test_every_way_to_generate_keys_is_recognized(make: Callable[[], type[Any]]) -> None:
    assert codes(make()) == []


@pytest.mark.parametrize("name", ["postgresql", "sqlite", "mssql"])
def test_other_engines_report_nothing(name: str) -> None:
    assert codes(made(), name=name) == []


# -- models of this project ------------------------------------------------------------------------------------


def test_each_integer_key_that_is_pinned_is_an_identity() -> None:
    pinned: dict[str, str] = json.loads((PINNED / "oracle.json").read_text())
    tables = {name: sql for name, sql in pinned.items() if name.startswith("create table ")}
    keys = {name: re.search(r"PRIMARY KEY \((\w+)\)", sql) for name, sql in tables.items()}
    left = [
        name
        for name, key in keys.items()
        if key
        and re.search(rf"^\t{key[1]} (INTEGER|NUMBER\(19\)) NOT NULL", tables[name], re.MULTILINE)
        and f"FOREIGN KEY({key[1]})" not in tables[name]
    ]
    assert len(tables) > 20
    assert left == []


def _sources() -> Iterator[tuple[Path, str]]:
    for folder in ("sqlqueue", "tests", "examples"):
        yield from ((path, path.read_text(encoding="utf-8")) for path in sorted((PROJECT / folder).rglob("*.py")))
    for page in (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            yield page, block


def test_each_example_is_declared_with_identity() -> None:
    """This applies to integer keys of models that users may copy, or that the tests create."""
    left = [
        f"{path.relative_to(PROJECT)}: {each.name}"
        for path, source in _sources()
        if not path.relative_to(PROJECT).as_posix().startswith(_NEVER_MADE)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.ClassDef) and _leaves_its_key_to_the_server(each)
    ]
    assert left == []


_NEVER_MADE = ("tests/model/", "tests/typing/", "tests/dialects/test_oracle_keys.py", "tests/check/test_schema.py")
"""Places of models that never have tables, are wrong on purpose, or need a SERIAL on PostgreSQL."""


def _leaves_its_key_to_the_server(model: ast.ClassDef) -> bool:
    keys = [
        ast.unparse(each)
        for each in model.body
        if isinstance(each, (ast.AnnAssign, ast.Assign)) and "primary_key=True" in ast.unparse(each)
    ]
    is_left = len(keys) == 1 and "olumn(" in keys[0] and re.search(r"\b(int|Integer|BigInteger)\b", keys[0])
    return bool(is_left) and not re.search(
        r"Identity\(|Sequence\(|ForeignKey\(|autoincrement=False|\bdefault=\w+\.", keys[0]
    )


@pytest.mark.parametrize("name", ["mysql", "mariadb", "sqlite", "mssql"])
def test_identity_changes_nothing_on_other_engines(name: str) -> None:
    engine, _ = recording_engine(*ENGINES[name])
    keys: tuple[tuple[Any, ...], ...] = ((), (Identity(),))
    without, with_it = (str(CreateTable(made(*key).__table__).compile(engine)) for key in keys)
    assert with_it == without


# -- keys that are texts ---------------------------------------------------------------------------------------------


def _is_compared(spec: QueueSpec, role: str) -> bool:
    return (
        isinstance(spec[role].type, KeyText) and role != "former_key"
    )  # these columns are written by the queue itself


_TEXTS = [(spec, role) for spec in queues(Models.metadata) for role in spec.columns if _is_compared(spec, role)]


@pytest.mark.parametrize(
    ("spec", "role"), _TEXTS, ids=lambda each: each if isinstance(each, str) else each.entity.__name__
)
def test_no_key_is_an_empty_text(spec: QueueSpec, role: str) -> None:
    # Oracle would store NULL, which is in no unique index and equal to nothing
    with pytest.raises(ArgumentError, match="non-empty"):
        check_values(spec, {spec.attributes[role]: ""})
