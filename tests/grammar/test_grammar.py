"""Every pinned statement for SQL Server and Oracle matches the grammar of its language, and invalid statements are
rejected."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.grammar import ParserMissingError, plsql, tsql

pytestmark = pytest.mark.timeout(600)  # the first statements of a grammar are slow

PINNED = Path(__file__).parents[1] / "dialects" / "pinned"
CHECKS = {"mssql": tsql.errors, "oracle": plsql.errors}
ENGINES = tuple(CHECKS)

Verdicts = Callable[[str], dict[str, list[str]]]

# (engine, name of the sample) -> the statement and a part of the error
REFUSED = {
    ("mssql", "misspelt-keyword"): ("UPDATE task SET status = 'running' WHER id = :id", "Incorrect syntax near WHER"),
    ("mssql", "misspelt-verb"): ("SELEC 1", "taken for the call of a procedure"),
    ("mssql", "other-dialect"): ("SELECT id FROM task ORDER BY id LIMIT 5", "encountered LIMIT"),
    ("mssql", "unrendered-parameter"): ("SELECT id FROM task WHERE id = ?", "Incorrect syntax near ?"),
    ("mssql", "empty"): ("", "no statement at all"),
    ("oracle", "misspelt-keyword"): ("UPDATE task SET status = 'running' WHER id = :id", "mismatched input 'WHER'"),
    ("oracle", "unfinished-block"): ("BEGIN UPDATE task SET status = 'running'; LOOP EXIT; END;", "LOOP"),
    ("oracle", "other-dialect"): ("SELECT id FROM task ORDER BY id LIMIT 5", "mismatched input 'LIMIT'"),
    ("oracle", "limit-and-lock"): (
        "SELECT id FROM task ORDER BY id FETCH FIRST 5 ROWS ONLY FOR UPDATE SKIP LOCKED",
        "ORA-02014",
    ),
    ("oracle", "limit-and-lock-in-cursor"): (
        "DECLARE CURSOR c IS SELECT id FROM task FETCH FIRST 5 ROWS ONLY FOR UPDATE; BEGIN OPEN c; CLOSE c; END;",
        "ORA-02014",
    ),
    ("oracle", "limited-view-and-lock"): (
        "SELECT id FROM (SELECT id FROM task FETCH NEXT 5 ROWS ONLY) FOR UPDATE",
        "ORA-02014",
    ),
    ("oracle", "lock-in-subquery"): (
        "SELECT id FROM (SELECT id FROM task FOR UPDATE SKIP LOCKED) picked",
        "FOR UPDATE inside a subquery",
    ),
    ("oracle", "lock-in-insert"): (
        "INSERT INTO task (id) SELECT id FROM task FOR UPDATE",
        "FOR UPDATE inside a subquery",
    ),
    ("oracle", "empty"): ("", "no statement at all"),
}

ACCEPTED = {
    ("mssql", "updatable-cte"): (
        "WITH picked AS (SELECT TOP 10 id, status, priority, attempt, available_at"
        " FROM task WITH (ROWLOCK, UPDLOCK, READPAST, FORCESEEK, INDEX(ix_task_claim))"
        " WHERE status = 'available' ORDER BY priority, available_at, id)"
        " UPDATE picked SET status = 'running', attempt = picked.attempt + 1, available_at ="
        " DATEADD(microsecond, (:s - FLOOR(:s)) * 1000000, DATEADD(second, FLOOR(:s), SYSUTCDATETIME()))"
        " OUTPUT deleted.priority, inserted.id"
    ),
    ("mssql", "colons-in-text"): (
        "SELECT ':a', N'it''s :b', [c:d], \"e :f\" FROM task WHERE id = :id -- :g\n AND 1 = 1 /* :h\n :i */"
    ),
    ("oracle", "claim-block"): (
        "DECLARE CURSOR c IS SELECT ROWID FROM task WHERE status = 'available'"
        " ORDER BY priority, available_at, id FOR UPDATE SKIP LOCKED;"
        " TYPE rowids IS TABLE OF ROWID; picked rowids; taken rowids; room PLS_INTEGER := :n; list VARCHAR2(32767);"
        " BEGIN OPEN c; LOOP FETCH c BULK COLLECT INTO picked LIMIT room; EXIT WHEN picked.COUNT = 0;"
        " FORALL i IN 1 .. picked.COUNT UPDATE task SET status = 'running', attempt = task.attempt + 1"
        " WHERE ROWID = picked(i) AND task.status = 'available' RETURNING ROWID BULK COLLECT INTO taken;"
        " FOR i IN 1 .. taken.COUNT LOOP list := list || ROWIDTOCHAR(taken(i)) || ','; END LOOP;"
        " room := room - taken.COUNT; EXIT WHEN room <= 0; END LOOP; CLOSE c; :rowids := list; END;"
    ),
    ("oracle", "limit-in-text"): "SELECT 'FETCH FIRST 5 ROWS ONLY' FROM task FOR UPDATE",
    ("oracle", "limit-on-other-rows"): (
        "SELECT id FROM task WHERE id IN (SELECT id FROM task FETCH FIRST 5 ROWS ONLY) FOR UPDATE SKIP LOCKED"
    ),
    ("oracle", "lock-in-cursor-loop"): "BEGIN FOR r IN (SELECT id FROM task FOR UPDATE) LOOP NULL; END LOOP; END;",
}


def pinned(engine: str) -> dict[str, str]:
    path = PINNED / f"{engine}.json"
    statements: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return statements


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("SQLQUEUE_REQUIRE_GRAMMAR") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def verdicts() -> Verdicts:
    """Return the parser's result for all statements of an engine; it runs once, since starting it takes the most
    time."""
    samples = {key: sql for key, (sql, _) in REFUSED.items()} | ACCEPTED

    @functools.cache
    def of(engine: str) -> dict[str, list[str]]:
        statements = {f"sample {name}": sql for (owner, name), sql in samples.items() if owner == engine}
        try:
            return CHECKS[engine](pinned(engine) | statements)
        except ParserMissingError as missing:
            unavailable(str(missing))

    return of


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_are_pinned(engine: str) -> None:
    if not pinned(engine):
        unavailable(f"no statement is pinned in {PINNED.name}/{engine}.json")


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine in ENGINES for name in pinned(engine)])
def test_pinned_statement_is_accepted(verdicts: Verdicts, engine: str, name: str) -> None:
    assert verdicts(engine)[name] == []


@pytest.mark.parametrize(("engine", "name"), list(ACCEPTED))
def test_sample_is_accepted(verdicts: Verdicts, engine: str, name: str) -> None:
    assert verdicts(engine)[f"sample {name}"] == []


@pytest.mark.parametrize(("engine", "name"), list(REFUSED))
def test_sample_is_rejected(verdicts: Verdicts, engine: str, name: str) -> None:
    _, complaint = REFUSED[engine, name]
    assert complaint in "\n".join(verdicts(engine)[f"sample {name}"])


def test_parameters_become_variables_outside_of_text_only() -> None:
    assert tsql.with_variables("a = :x_1 AND b = ':y' -- :z") == "a = @x_1 AND b = ':y' -- :z"
    assert tsql.with_variables("geometry::Parse(:p)") == "geometry::Parse(@p)"
