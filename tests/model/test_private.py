"""What the package uses that is private in SQLAlchemy and in Python does what it is used for, in each version."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest
from sqlalchemy import (
    DDL,
    Engine,
    Index,
    Integer,
    String,
    Text,
    create_engine,
    delete,
    event,
    exists,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, undefer, with_loader_criteria
from sqlalchemy.sql.functions import FunctionElement

from sqlqueue._support import private


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Book(Base):
    __tablename__ = "book"

    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int]


AUTHOR, BOOK = Base.metadata.tables["author"], Base.metadata.tables["book"]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://")
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def test_a_session_says_whether_it_is_flushing(engine: Engine) -> None:
    seen = []
    with Session(engine) as session:
        event.listen(session, "before_flush", lambda *_: seen.append(private.is_flushing(session)))
        session.add(Author(name="Ada"))
        session.flush()
        assert (seen, private.is_flushing(session)) == ([True], False)


def test_the_tables_in_an_expression() -> None:
    of_both = (Author.id == Book.author_id) & (Author.name > "a")
    assert private.tables_in(of_both) == {AUTHOR, BOOK}
    assert private.tables_in(exists().where(Book.author_id == AUTHOR.c.id) & (AUTHOR.c.id > 1)) == {AUTHOR}
    assert private.tables_in(literal(1)) == set()


def test_the_options_of_a_statement() -> None:
    option = undefer(Author.name)
    assert list(private.options_of(select(Author).options(option))) == [option]
    assert list(private.options_of(select(Author))) == []


def test_the_level_that_an_engine_was_given() -> None:
    levels = (None, "AUTOCOMMIT", "SERIALIZABLE")
    engines = [create_engine("sqlite://", **({"isolation_level": level} if level else {})) for level in levels]
    assert [private.configured_level(each.dialect) for each in engines] == list(levels)


@pytest.mark.parametrize("statement", [update(Author), delete(Author)], ids=["update", "delete"])
def test_the_criteria_and_hints_of_a_statement(statement: Any) -> None:
    criterion = Author.name == "Ada"
    whole = statement.where(criterion).with_hint("WITH (ROWLOCK)", dialect_name="mssql")
    assert list(private.criteria_of(whole)) == [criterion]
    assert list(private.hints_of(whole)) == ["WITH (ROWLOCK)"]
    bare = private.without_criteria(whole)
    assert (list(private.criteria_of(bare)), list(private.hints_of(bare))) == ([], [])
    assert str(bare.compile(dialect=mssql.dialect())) == str(statement.compile(dialect=mssql.dialect()))
    assert "WHERE" in str(whole)  # unchanged


def test_the_criteria_of_an_entity() -> None:
    mine = with_loader_criteria(Author, Author.name == "Ada")
    options = [mine, with_loader_criteria(Book, Book.id > 1), undefer(Author.name)]
    (criterion,) = private.entity_criteria(options, Author.__mapper__)
    assert str(criterion) == "author.name = :name_1"


def test_a_function_that_depends_on_an_attribute_is_compiled_for_each_of_its_values() -> None:
    class versioned(FunctionElement[int]):
        name = "versioned"
        inherit_cache = True
        _traverse_internals = private.cached_with("version")
        version = 1

    one, same, other = versioned(), versioned(), versioned()
    other.version = 2
    keys = [select(each)._generate_cache_key() for each in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]


def test_the_affinity_of_types() -> None:
    assert private.affinity(Text()) is private.affinity(String(5)) is String
    assert private.affinity(Integer()) is Integer


def test_the_variants_of_a_type() -> None:
    plain, long = String(5), Text()
    varied = plain.with_variant(long, "mysql")
    assert dict(private.variants_of(varied)) == {"mysql": long}
    assert private.variants_of(private.without_variants(varied)) == private.variants_of(plain) == {}
    assert private.without_variants(varied).length == 5
    assert private.variants_of(varied)  # unchanged


def test_indexes_with_a_condition() -> None:
    plain, conditional = Index(None, "name"), Index(None, "name").ddl_if(dialect="mysql")
    assert [private.is_conditional(each) for each in (plain, conditional)] == [False, True]


def test_a_listener_decides_whether_it_is_executed(engine: Engine) -> None:
    here, elsewhere = (DDL("SELECT 1").execute_if(dialect=name) for name in ("sqlite", "mysql"))
    with engine.connect() as connection:
        assert [private.is_executed(each, AUTHOR, connection) for each in (here, elsewhere)] == [True, False]


def test_the_message_of_a_traceback() -> None:
    formatted = TracebackException.from_exception(ValueError("a secret"))
    private.set_message(formatted, "nothing")
    assert list(formatted.format_exception_only()) == ["ValueError: nothing\n"]


def test_exit_functions_run_once() -> None:
    program = (
        "import atexit; from sqlqueue._support.private import run_exit_functions;"
        "atexit.register(print, 'once'); run_exit_functions()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "once\n"


PACKAGE = Path(private.__file__).parents[1]
DOCUMENTED = {"_replace", "_asdict", "_exit", "_mapping", "_current_frames"}
"""Names with an underscore that named tuples, the modules os and sys, and rows document."""


OF_DRIVERS = {"_sock", "_read_timeout", "_usock"}
"""What adapters use of PyMySQL and pg8000, besides attributes that they look for by name."""
OF_CLAUSES = {"_construct_raw"}
"""What a clause of the adapter for SQL Server inherits; its text has tests."""


def test_nothing_private_is_used_elsewhere() -> None:
    own_of_adapters = OF_DRIVERS | OF_CLAUSES
    trees = {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_of_self(node)}
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.attr}"
        for path, tree in trees.items()
        if path != Path(private.__file__)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in own | DOCUMENTED
        if PACKAGE / "dialects" not in path.parents or node.attr not in own_of_adapters
    ]
    assert found == []


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
