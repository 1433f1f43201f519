"""Every function that a statement calls exists in the oldest supported version of its engine.

`functions` lists the built-in functions of each, and where the list is from.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.dialects.test_pinned import ENGINES, PINNED

FUNCTIONS = Path(__file__).parent / "functions"

_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_BEFORE_PARENTHESIS = re.compile(
    r"(?:(?P<before>\w+)\s+)?(?<![\w.:@])(?P<name>[A-Za-z_][\w.]*)\s*\((?=(?P<first>[^(),]*))"
)
_DECLARED = re.compile(r"^\s*(?:TYPE\s+)?(\w+)\s+(?:IS TABLE\b|\w+;)", re.MULTILINE)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX \S+ ON \S+ ")
_KEYWORDS = {
    *("and", "any", "array", "as", "by", "conflict", "default", "else", "exists", "from", "in", "index"),
    *("join", "key", "lateral", "materialized", "not", "on", "option", "or", "over", "select"),
    *("set", "table", "then", "unique", "values", "when", "where", "with"),
}
_TYPES = {"char", "datetime", "datetime2", "number", "numeric", "nvarchar", "nvarchar2", "raw", "varchar", "varchar2"}
_BEFORE_COLUMNS = {"as", "into", "recursive", "references", "table", "with"}
"""What precedes the name of a table, an alias or a CTE, which is followed by its columns."""


def calls(sql: str) -> set[str]:
    """Return the names of the functions that the statement calls, in lower case and without PostgreSQL's schema."""
    text = _INDEX.sub(" ", _QUOTED.sub(" '' ", sql))
    found = set()
    for match in _BEFORE_PARENTHESIS.finditer(text):
        name = match["name"].lower().removeprefix("pg_catalog.")
        is_type = name in _TYPES and re.fullmatch(r"\d+( CHAR)?|max", match["first"])
        if name not in _KEYWORDS and not is_type and (match["before"] or "").lower() not in _BEFORE_COLUMNS:
            found.add(name)
    return found - {name.lower() for name in _DECLARED.findall(text)}


def called(engine: str) -> dict[str, set[str]]:
    """Return the functions that each pinned statement calls."""
    pinned: dict[str, str] = json.loads((PINNED / f"{engine}.json").read_text())
    return {name: calls(sql) for name, sql in pinned.items()}


def listed(engine: str) -> tuple[str, set[str]]:
    """Return the comment of the engine's list, and the functions in it."""
    lines = (FUNCTIONS / f"{engine}.txt").read_text().splitlines()
    comment = "\n".join(line for line in lines if line.startswith("#"))
    return comment, {name for line in lines if not line.startswith("#") for name in line.split()}


@pytest.mark.parametrize("engine", ENGINES)
def test_all_functions_exist(engine: str) -> None:
    found, (_, known) = called(engine), listed(engine)
    assert len(set().union(*found.values())) > 10
    assert {name: unknown for name, names in found.items() if (unknown := names - known)} == {}


@pytest.mark.parametrize("engine", ["mysql", "oracle", "sqlite"])
def test_those_of_a_list_that_is_not_wholly_compared_were_looked_up(engine: str) -> None:
    names, (comment, _) = set().union(*called(engine).values()), listed(engine)
    assert {name for name in names if not re.search(rf"\b{name.upper()}\b", comment)} == set()


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT make_interval(0, 0, :p) + max(a) FROM b WHERE c IN (1) AND (d)", {"make_interval", "max"}),
        ("SELECT 'f(x)', [g(x)], `h(x)`, \"i(x)\" /*+ INDEX(t ix) */ FROM t -- j(x)", set()),
        ("INSERT INTO t (a) VALUES (lower(:b))", {"lower"}),
        ("CREATE TABLE t (a VARCHAR(20 CHAR) DEFAULT upper('b'), FOREIGN KEY(a) REFERENCES s (a))", {"upper"}),
        ("CREATE UNIQUE INDEX i ON t (a, f(b))", {"f"}),
        ("SELECT max(a) FROM t WITH (UPDLOCK) OPTION (MAXDOP 1)", {"max"}),
        ("WITH p (a) AS (SELECT 1) SELECT a FROM p, UNNEST(:q) AS r (b)", {"unnest"}),
        ("SELECT pg_catalog.round(a), char(b), char (10) FROM t", {"round", "char"}),
    ],
)
def test_calls_are_found(sql: str, names: set[str]) -> None:
    assert calls(sql) == names
