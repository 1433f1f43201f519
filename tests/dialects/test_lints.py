"""Rules that the text of every pinned statement follows, for engines on which the statements have never run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Column, Table
from sqlalchemy.dialects import oracle

from sqlqueue.queue.spec import Ordering
from tests.dialects.catalog import BASES, mappers
from tests.dialects.test_pinned import PINNED

SPECS = [spec for mapper in mappers() if (spec := getattr(mapper.class_, "__queue_spec__", None)) is not None]
TABLES = {table.name: table for base in BASES for table in base.metadata.tables.values()}


def pinned(engine: str) -> dict[str, str]:
    statements: dict[str, str] = json.loads((PINNED / f"{engine}.json").read_text())
    return {name: sql for name, sql in statements.items() if not name.startswith(("create ", "check "))}


def results(sql: str) -> Iterator[list[str]]:
    """Yield the results of each CASE, with those of a CASE that is itself a result."""
    open_: list[list[str]] = []
    begun: list[int] = []
    for word in re.finditer(r"'[^']*'|\b(?:CASE|WHEN|THEN|ELSE|END)\b", sql):
        if word[0] == "CASE":
            open_.append([])
            begun.append(-1)
        elif word[0][0] != "'" and open_:
            if begun[-1] >= 0 and word[0] != "THEN":
                open_[-1].append(sql[begun[-1] : word.start()].strip())
            begun[-1] = word.end() if word[0] in ("THEN", "ELSE") else -1
            if word[0] == "END":
                begun.pop()
                found = open_.pop()
                yield found
                if begun and begun[-1] >= 0 and sql[begun[-1] : word.end()].lstrip().startswith("CASE"):
                    open_[-1] += found
                    begun[-1] = -1


def test_no_case_mixes_texts_of_different_types() -> None:
    """The results of a CASE have one type: ORA-00932 for a LOB and another text, ORA-12704 for NVARCHAR2 and another.

    A parameter has the type that SQLAlchemy gives it, which is never a LOB.
    """
    cases = [(name, case) for name, sql in pinned("oracle").items() for case in results(sql)]
    texts = [(name, set(map(_text_type, case)) - {None}) for name, case in cases]
    assert any("LOB" in types for _, types in texts)
    assert [name for name, types in texts if len(types - {"parameter"}) > 1 or types >= {"LOB", "parameter"}] == []


def test_no_name_in_a_block_can_be_that_of_a_column() -> None:
    """In SQL within a block, a column is preferred to a variable of the same name."""
    blocks = {name: sql for name, sql in pinned("oracle").items() if sql.startswith("DECLARE")}
    assert len(blocks) > 30
    for name, sql in blocks.items():
        declared = re.findall(r"\b(?:CURSOR|TYPE|FOR|FORALL) (\w+) I[NS]\b", sql)
        declared += re.findall(r"(?m)^  (\w+) [\w()]+(?: := \S+)?;$", sql.partition("BEGIN")[0])
        assert len(declared) >= 8
        assert [each for each in declared if not each.startswith("sqlqueue_")] == [], name


def _text_type(result: str) -> str | None:
    """Return the type of a text; `None` for NULL and other expressions."""
    if result.startswith((":", "'")):
        return "parameter" if result[0] == ":" else "VARCHAR2"
    table, _, column = result.replace('"', "").partition(".")
    if table not in TABLES or column not in TABLES[table].c:
        return None
    kind = str(TABLES[table].c[column].type.compile(dialect=oracle.dialect())).partition("(")[0]
    return "LOB" if kind in ("CLOB", "NCLOB", "BLOB", "JSON") else kind


class Access(NamedTuple):
    """A place where a statement reads or writes a table under its own name, with hints."""

    statement: str
    table: Table
    hints: list[str]
    criteria: str
    """The criteria of the (sub)query or statement."""

    @property
    def index(self) -> str | None:
        """The index that the hints name; `1` for the clustered one."""
        return next((hint[6:-1] for hint in self.hints if hint.startswith("INDEX(")), None)


def accesses() -> Iterator[Access]:
    """Yield each use of table hints in the statements for SQL Server."""
    for name, sql in pinned("mssql").items():
        for found in re.finditer(r"(?:FROM|UPDATE|JOIN) (\w+) WITH \(((?:[^()]|\(\w+\))*)\)", sql):
            rest = sql[found.end() :]
            yield Access(name, TABLES[found[1]], found[2].split(", "), rest[rest.find("WHERE ") :])


def test_a_seek_names_its_index_and_a_value_of_its_first_column() -> None:
    """FORCESEEK alone allows every index; without such a value there is no plan (error 8622)."""
    sought = [each for each in accesses() if "FORCESEEK" in each.hints]
    assert len(sought) > 200
    for each in sought:
        assert each.index is not None, each.statement
        column = rf"\b{each.table.name}\.{_first_column(each.table, each.index).name}\b"
        sought_for = rf"{column} (= [:']|IN \(:|IS NULL)|sqlqueue_wanted\.\w+ = {column}"
        assert re.search(sought_for, each.criteria), each.statement


def test_several_keys_of_several_columns_are_no_alternatives() -> None:
    """Of alternatives with parameters, SQL Server seeks only the first column, and locks all rows that have it."""
    for each in accesses():
        columns = [rf"{each.table.name}\.{column.name} = :\w+" for column in each.table.primary_key]
        if len(columns) > 1:
            key = " AND ".join(columns)
            assert not re.search(rf"{key}[^()]*\)? OR \(?{key}", each.criteria), each.statement


def test_locks_name_the_index_that_they_rely_on() -> None:
    locking = [each for each in accesses() if "UPDLOCK" in each.hints]
    assert len(locking) > 50
    assert [each.statement for each in locking if each.index is None or "FORCESEEK" not in each.hints] == []


def _first_column(table: Table, index: str) -> Column[object]:
    if index == "1":
        return next(iter(table.primary_key))
    (named,) = (each for each in table.indexes if each.name == index)
    return next(iter(named.columns))


def limited(sql: str) -> Iterator[str]:
    """Yield each SELECT with FETCH FIRST, up to there."""
    begun = [0]
    for word in re.finditer(r"'[^']*'|[()]|\bSELECT\b|\bFETCH FIRST\b", sql):
        if word[0] == "(":
            begun.append(word.end())
        elif word[0] == ")":
            begun.pop()
        elif word[0] == "SELECT":
            begun[-1] = word.start()
        elif word[0] == "FETCH FIRST":
            yield sql[begun[-1] : word.start()].replace('"', "")


def test_reads_of_the_first_tasks_name_their_index() -> None:
    """Without a hint, versions before the fix of bug 22174392 plan FETCH FIRST for all rows: they read and sort them.

    An index that contains all columns is used anyway.
    """
    seen = 0
    for name, sql in pinned("oracle").items():
        for block in limited(sql):
            table = TABLES.get(_word_after("FROM", block))
            if table is None or not re.search(
                rf" ORDER BY (?:{'|'.join(map(_order, _orders(table)))})$", block.rstrip()
            ):
                continue
            seen += 1
            read = set(re.findall(rf"\b{table.name}\.(\w+)", block))
            contained = any(read <= {column.name for column in index.columns} for index in table.indexes)
            assert contained or block.startswith(f"SELECT /*+ INDEX({table.name} ix_"), name
    assert seen > 50


def _word_after(word: str, block: str) -> str:
    found = re.search(rf"\b{word} (\w+)", block)
    return found[1] if found else ""


def _orders(table: Table) -> Iterator[Sequence[Ordering]]:
    for spec in SPECS:
        if spec.table is table:
            yield from (spec.ready_order, spec.due_order)


def _order(terms: Sequence[Ordering]) -> str:
    """Return the terms as a pattern of ORDER BY."""
    return ", ".join(rf"{term.column.table.name}\.{term.column.name}{' DESC' * term.descending}" for term in terms)
