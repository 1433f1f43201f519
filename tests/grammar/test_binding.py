"""All names in the statements for SQL Server and Oracle exist, and the types of Oracle's expressions fit, as far as two
binders can tell. What they cannot judge is listed, so that anything else fails.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateTable

from sqlqueue import QueueMixin, QueueSession
from tests.dialects.catalog import schema
from tests.dialects.recorder import recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.grammar import ParserMissingError, dacfx, hsqldb
from tests.grammar.test_grammar import pinned, unavailable

T = TypeVar("T")
# .NET compiles Microsoft's model before it runs, and shares two cores with others
pytestmark = pytest.mark.timeout(600)

SYSTEM_VIEWS = {"columns", "databases", "dm_sql_referencing_entities", "index_columns", "indexes", "triggers"}
"""The views of SQL Server that are not in the model, which has the user's objects only."""

CANNOT = {
    "object not found: ALL_INDEXES": "a catalog view",
    "object not found: ALL_PART_KEY_COLUMNS": "a catalog view",
    "object not found: ALL_SUBPART_KEY_COLUMNS": "a catalog view",
    "object not found: ALL_TABLES": "a catalog view",
    "object not found: ALL_TAB_IDENTITY_COLS": "a catalog view",
    "object not found: ALL_TAB_PRIVS": "a catalog view",
    "object not found: ALL_TRIGGERS": "a catalog view",
    "object not found: NLS_DATABASE_PARAMETERS": "a catalog view",
    "object not found: NLS_SESSION_PARAMETERS": "a catalog view",
    "object not found: SESSION_PRIVS": "a catalog view",
    "object not found: SESSION_SCHEMA_PRIVS": "a catalog view",
    "object not found: SYS_CONTEXT": "the session's schema",
    "Task.fail(many) 1: data type cast needed for parameter or null literal": "numtodsinterval() of a CASE of binds",
    "Visit.claim(places) 6: data type cast needed for parameter or null literal": "a CASE of binds",
}
"""What HSQLDB says of Oracle's statements, and the reason for which that is wrong."""

UNBOUND = {
    "column": ("SELECT nosuch FROM task", "[task].[nosuch]"),
    "column of OUTPUT": ("UPDATE task SET name = 'a' OUTPUT inserted.nosuch WHERE id = :id", "[task].[nosuch]"),
    "column of a CTE": ("WITH picked AS (SELECT id FROM task) UPDATE picked SET nosuch = 1", "column nosuch"),
    "table": ("SELECT 1 FROM nosuch", "[nosuch]"),
    "index": ("SELECT id FROM task WITH (INDEX(ix_nosuch))", "[task].[ix_nosuch]"),
    "variable": ("SELECT id FROM task WHERE id = @nosuch", '"@nosuch"'),
}
"""T-SQL with an unknown name, and a part of the error."""

UNFIT = {
    "column": ("SELECT nosuch FROM task", "object not found: NOSUCH"),
    "function": ("SELECT make_interval(:n) FROM task", "object not found: MAKE_INTERVAL"),
    "returned column": ("UPDATE task SET name = :n RETURNING nosuch INTO :ret_0", "object not found: NOSUCH"),
    "column of a cursor": (
        "DECLARE CURSOR c IS SELECT ROWID FROM task WHERE nosuch = 1 FOR UPDATE SKIP LOCKED; BEGIN NULL; END;",
        "object not found: NOSUCH",
    ),
    "column of a block": (
        "BEGIN\n  UPDATE task SET nosuch = 1 WHERE ROWID = taken(i);\nEND;",
        "object not found: NOSUCH",
    ),
    "sum": ("UPDATE task SET available_at = available_at + 'x'", "incompatible data types"),
    "case": ("SELECT CASE WHEN id = :id THEN error ELSE available_at END FROM task", "incompatible data types"),
}
"""Oracle's SQL with an unknown name or types that do not fit, and a part of the error."""


def statements(engine: str) -> dict[str, str]:
    return {name: sql for name, sql in pinned(engine).items() if not sql.startswith("CREATE ")}


def ddl(engine: str) -> list[str]:
    return schema(recording_engine(*ENGINES[engine])[0])


def samples(given: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {f"sample {name}": sql for name, (sql, _) in given.items()}


@functools.cache
def transact() -> dict[str, dict[str, list[str]]]:
    """Return the errors of Microsoft's model, by version and name."""
    return binder(lambda: dacfx.errors(ddl("mssql"), statements("mssql") | samples(UNBOUND)))


@functools.cache
def oracle() -> dict[str, list[str]]:
    """Return the errors of HSQLDB, by name."""
    return binder(lambda: hsqldb.errors(ddl("oracle"), statements("oracle") | samples(UNFIT)))


def binder(bind: Callable[[], T]) -> T:
    try:
        return bind()
    except ParserMissingError as missing:
        unavailable(str(missing))


@pytest.mark.parametrize("version", dacfx.VERSIONS)
def test_names_exist_on_sql_server(version: str) -> None:
    found = {name: errors for name, errors in transact()[version].items() if not name.startswith("sample ")}
    lines = {f"{name}: {error}" for name, errors in found.items() for error in errors}
    assert {line for line in lines if "[sys].[" not in line} == set()
    assert set(re.findall(r"\[sys\]\.\[(\w+)\]", "".join(lines))) == SYSTEM_VIEWS


@pytest.mark.parametrize("name", UNBOUND)
@pytest.mark.parametrize("version", dacfx.VERSIONS)
def test_an_unknown_name_is_found_on_sql_server(version: str, name: str) -> None:
    assert UNBOUND[name][1] in "".join(transact()[version][f"sample {name}"])


def test_a_predicate_that_an_index_cannot_have_is_found_on_sql_server() -> None:
    index = "CREATE INDEX ix_a ON a (b) WHERE b > SYSUTCDATETIME()"
    for found in binder(lambda: dacfx.errors(["CREATE TABLE a (b DATETIME2(6))", index], {})).values():
        assert "incorrect expression in the WHERE clause" in "".join(found[""])


def test_names_and_types_fit_on_oracle() -> None:
    found = {name: errors for name, errors in oracle().items() if not name.startswith("sample ")}
    lines = {f"{name}: {error}" for name, errors in found.items() for error in errors}
    assert {line for line in lines if not any(reason in line for reason in CANNOT)} == set()
    assert {reason for reason in CANNOT if not any(reason in line for line in lines)} == set()


def test_the_statements_of_every_block_are_bound() -> None:
    blocks = [sql for sql in statements("oracle").values() if sql.startswith("DECLARE")]
    assert len(blocks) > 30
    for block in blocks:
        bound = " ".join(hsqldb.parts(block))
        for verb in ("SELECT", "UPDATE", "DELETE", "INSERT"):
            assert len(re.findall(rf"\b{verb} ", bound)) == len(re.findall(rf"\b{verb} ", block))


class Own(DeclarativeBase):
    pass


class Errand(QueueMixin, Own):
    """A model whose columns have the names that a block's variables would have without their prefix."""

    __tablename__ = "errand"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    free: Mapped[int | None]
    picked: Mapped[int | None]
    taken: Mapped[int | None]
    room: Mapped[int | None]
    listed: Mapped[int | None]
    rowids: Mapped[int | None]
    still: Mapped[int | None]
    i: Mapped[int | None]
    sqlqueue: Mapped[int | None]
    sqlqueue_note: Mapped[int | None]


@pytest.mark.parametrize(("prefix", "captured"), [("sqlqueue_", set()), ("", {"picked", "taken", "i"})])
def test_no_column_is_taken_for_a_variable_of_a_block(prefix: str, captured: set[str]) -> None:
    """In SQL within a block, a column is preferred to a variable of the same name."""
    engine, log = recording_engine(*ENGINES["oracle"])
    with QueueSession(engine) as session:
        session.claim(Errand, Errand.taken.is_(None), Errand.sqlqueue_note.is_(None))
    block = re.sub(r"\bsqlqueue_(?!note)", prefix, log[0])
    variables = {name for found in re.findall(r"ROWID = (\w+)\((\w+)\)", block) for name in found}
    assert len(variables) == 3
    tables = [str(CreateTable(Errand.__queue_spec__.table).compile(engine)).strip()]
    asked = {name: f"SELECT {name} FROM errand" for name in variables}
    found = binder(lambda: hsqldb.errors(tables, {"block": block, **asked}))
    assert found[""] == found["block"] == []
    assert {name for name in variables if not found[name]} == captured


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_found_on_oracle(name: str) -> None:
    assert UNFIT[name][1] in "".join(oracle()[f"sample {name}"])
