"""SQL requests: one statement, a valid response of bounded size and memory, and no longer than the timeout."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqlqueue import ArgumentError
from sqlqueue._support.processes import CONTEXT
from sqlqueue.dialects.connections import StatementResult
from sqlqueue.sqltasks import RequestFailed, SQLTaskDatabase, SQLTaskScheduler, execution
from sqlqueue.sqltasks.execution import RequestExecutor, Watchdog, response
from tests.support.harness import Database
from tests.support.models import Ledger, Task

DIGITS = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10))
MUCH = ", ".join(f"({DIGITS}) d{n}" for n in range(12))
ENDLESS = f"SELECT SUM({' * '.join(f'd{n}.n' for n in range(12))}) AS n FROM {MUCH}"
"""A query over 10 to the power of 12 rows."""


def executor(db: Database, **options: Any) -> RequestExecutor:
    return RequestExecutor(db.url, {}, **{"timeout": timedelta(minutes=1), "limit": 1_000_000, **options})


def run(db: Database, request: str, *, timeout: float | None = None, **options: Any) -> Any:
    """Return the response, parsed by a parser that accepts only valid JSON."""
    told = executor(db, **options).execute(request, user=None, timeout=timeout)
    return json.loads(told, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def value(db: Database, expression: str) -> Any:
    ((found,),) = run(db, f"SELECT {expression}")["rows"]
    return found


# -- one statement -----------------------------------------------------------------------------------------------------


def test_several_statements_are_rejected_and_none_is_executed(sync_db: Database) -> None:
    table = Ledger.__tablename__
    first = f"INSERT INTO {table} (task_id, worker) VALUES (7, '')"
    for second in ("SELECT 1", first):
        with pytest.raises(RequestFailed) as failed:
            run(sync_db, f"{first}; {second}")
        assert failed.value.code not in (None, "timeout")
        assert run(sync_db, f"SELECT COUNT(*) FROM {table}")["rows"] == [[0]]
    assert run(sync_db, f"{first}  ;  ") == {"row_count": 1}


@pytest.mark.requires("copies")
@pytest.mark.parametrize("request_", ["COPY ledger TO STDOUT", "COPY ledger FROM STDIN"])
def test_a_copy_to_or_from_the_client_is_rejected(sync_db: Database, request_: str) -> None:
    with pytest.raises(RequestFailed, match="COPY FROM STDIN and COPY TO STDOUT need a client"):
        run(sync_db, request_)
    assert run(sync_db, "SELECT 1")["rows"] == [[1]]


@pytest.mark.parametrize("url", ["postgresql+psycopg2://", "mysql+mysqlconnector://", "mariadb+mariadbconnector://"])
def test_a_driver_that_may_execute_several_statements_is_rejected(url: str) -> None:
    with pytest.raises(ArgumentError, match="does not reject several statements in one request: use"):
        SQLTaskScheduler([SQLTaskDatabase(url=url)])


# -- valid responses ---------------------------------------------------------------------------------------------------


def test_common_values_become_json(sync_db: Database) -> None:
    found = run(sync_db, "SELECT 1, -9223372036854775808, 'Zoë \U0001f600 \"a%b\"', NULL, ''")
    assert found["rows"] == [[1, -9223372036854775808, 'Zoë \U0001f600 "a%b"', None, ""]]
    assert (found["row_count"], found["truncated"]) == (1, False)
    nothing = run(sync_db, "SELECT id AS first, error AS second FROM task WHERE 1 = 0")
    assert [name for name, _ in nothing["columns"]] == ["first", "second"]
    assert (nothing["rows"], nothing["row_count"], nothing["truncated"]) == ([], 0, False)
    sync_db.insert(Task, [{}])
    types = dict(run(sync_db, "SELECT id, name FROM task")["columns"])
    assert set(types) == {"id", "name"}
    assert not any(type_.isdigit() for type_ in types.values())


def test_values_without_a_json_type_become_text(sync_db: Database) -> None:
    for expression, expected in sync_db.case.odd_values.items():
        assert value(sync_db, expression) == expected, expression


def test_any_value_of_any_driver_makes_a_valid_response() -> None:
    odd = [float("nan"), float("inf"), -float("inf"), b"\x00\xff", memoryview(b"\x01"), "\ud800 \0", 10**50]
    nested = [{"a": float("nan"), 1: [timedelta(days=2)]}, (1, None)]
    found = json.loads(response(StatementResult([(f"c\ud800{n}", "") for n in range(9)], [[*odd, *nested]], 0), 1_000))
    (row,) = found["rows"]
    assert row == [
        *["NaN", "Infinity", "-Infinity", "00ff", "01", "\ufffd \0", 10**50, {"a": "NaN", "1": ["2 days, 0:00:00"]}],
        [1, None],
    ]
    assert found["columns"][0] == ["c\ufffd0", "float"]


# -- bounded memory ----------------------------------------------------------------------------------------------------


def _memory_of(url: URL, request: str, told: Any) -> None:
    small = RequestExecutor(url, {}, timeout=timedelta(minutes=2), limit=50_000)
    small.execute("SELECT 1", user=None, timeout=None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = json.loads(small.execute(request, user=None, timeout=None))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told.send((found["truncated"], len(found["rows"]), (after - before) / 1024))


def test_a_large_result_takes_little_memory(sync_db: Database) -> None:
    """The result is 80 MB, in rows of 8 kB."""
    sync_db.insert(Task, [{"error": "x" * 1_990} for _ in range(10)])
    columns, tables = (
        ", ".join(f"{each}{n}{end}" for n in range(4)) for each, end in (("t", ".error"), ("task t", ""))
    )
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=_memory_of, args=(sync_db.url, f"SELECT {columns} FROM {tables}", theirs))
    child.start()
    assert ours.poll(150)
    truncated, rows, megabytes = ours.recv()
    child.join()
    assert (truncated, rows) == (True, 6)
    assert megabytes < 40


@pytest.mark.requires("insert_returns")
def test_a_statement_with_too_many_rows_runs_to_its_end(sync_db: Database) -> None:
    three = ", ".join(f"({DIGITS}) d{n}" for n in range(3))
    rows = f"SELECT 100 * d0.n + 10 * d1.n + d2.n, '' FROM {three}"
    request = f"INSERT INTO ledger (task_id, worker) {rows} RETURNING task_id"
    found = run(sync_db, request, limit=20)
    assert found["truncated"]
    assert found["row_count"] < 20
    assert value(sync_db, "COUNT(*) FROM ledger") == 1_000


# -- the timeout -------------------------------------------------------------------------------------------------------


def _ends(db: Database, request: str) -> None:
    with pytest.raises(RequestFailed) as failed:
        run(db, request, timeout=0.5)
    assert failed.value.code == "timeout"
    assert str(failed.value).startswith("timeout: stopped after 0.5 s")


def test_statements_that_take_too_long_are_ended(sync_db: Database) -> None:
    _ends(sync_db, ENDLESS)


def test_a_statement_that_writes_is_ended_and_undone(sync_db: Database) -> None:
    _ends(sync_db, f"INSERT INTO ledger (task_id, worker) SELECT n, '' FROM ({ENDLESS}) endless")
    assert value(sync_db, "COUNT(*) FROM ledger") == 0


@pytest.mark.requires("one_writer")  # the driver interrupts the connection, not the server
def test_a_statement_is_not_interrupted_once_its_connection_is_closed(sync_db: Database) -> None:
    for _ in range(40):
        with pytest.raises(RequestFailed):
            run(sync_db, ENDLESS, timeout=0.02)


def test_a_request_of_endless_rows_is_ended(sync_db: Database) -> None:
    _ends(sync_db, f"SELECT 'a row' FROM {MUCH}")


@pytest.fixture
def prepared(sync_db: Database) -> Iterator[Database]:
    """Create the objects that the statements need."""
    engine = create_engine(sync_db.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    create, drop = sync_db.case.timeout_preparation
    with engine.connect() as connection:
        for statement in (*drop, *create):
            connection.exec_driver_sql(statement)
    yield sync_db
    with engine.connect() as connection:
        for statement in drop:
            connection.exec_driver_sql(statement)


def test_no_statement_lifts_its_timeout(prepared: Database) -> None:
    for request in prepared.case.timeout_liftings:
        _ends(prepared, request)


def test_timeouts_that_are_invalid_or_beyond_all_limits() -> None:
    only = RequestExecutor("sqlite://", {}, timeout=timedelta(minutes=1), limit=1_000)
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(RequestFailed, match="give a positive number of seconds"):
            only.execute("SELECT 1", user=None, timeout=timeout)
    for timeout in (1e300, float("inf")):
        assert '"rows":[[1]]' in only.execute("SELECT 1", user=None, timeout=timeout)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "PAUSE", 0.01)
    monkeypatch.setattr(execution, "CLOSING", 0.2)


@pytest.mark.usefixtures("hasty")
def test_the_watchdog_cancels_until_the_statement_ends() -> None:
    """It cancels repeatedly until the block is left, then has the server close the connection, and then closes it."""
    tries: list[bool] = []
    closed = Event()
    watchdog = Watchdog(timedelta(milliseconds=1))
    watchdog.interrupt, watchdog.close = tries.append, closed.set
    with watchdog:
        assert closed.wait(60)
        with pytest.raises(RequestFailed, match=r"timeout: stopped after 0\.001 s"):
            watchdog.check()
    assert tries[0] is False
    assert tries[-1] is True


@pytest.mark.usefixtures("hasty")
def test_the_watchdog_ends_although_the_server_does_not_respond() -> None:
    closed, never = Event(), Event()
    watchdog = Watchdog(timedelta(milliseconds=1))
    watchdog.interrupt, watchdog.close = lambda _: bool(never.wait()), closed.set
    with watchdog:
        assert closed.wait(60)
    never.set()
