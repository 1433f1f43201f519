"""How errors of a SQL Server are classified, as a real driver raises them: the number is at the end of the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.dialects import mssql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import QueueSession
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.base import Adapter
from sqlqueue.sqltasks import RequestFailed
from sqlqueue.sqltasks.execution import RequestExecutor
from tests.drivers.cases import ODBC, raised, taken_for, url_of
from tests.drivers.tds import GREETINGS, Answer, Drop, Failure, FakeServer, Silence
from tests.drivers.worker_parts import is_dropped
from tests.support.models import Task


@contextmanager
def served(**answers: Answer) -> Iterator[Engine]:
    with FakeServer({**GREETINGS, **answers}).listening() as port:
        engine = create_engine(url_of(ODBC, port))
        yield engine
        engine.dispose()


def error_of(failure: Answer) -> tuple[Adapter, DBAPIError]:
    with served(WRITE=failure) as engine, engine.connect() as connection:
        return adapter_for(engine.dialect), raised(lambda: connection.execute(text("WRITE")))


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        pytest.param((1205, 1222, 1204, 3960, 3961, 41302), "transient", id="transient"),
        pytest.param((921, 922, 976, 983), "outage", id="another primary"),
        pytest.param((596, 6005, 17142, 18401, 17809), "outage", id="maintenance"),
        pytest.param((3906, 9002, 1105), "outage", id="read-only or full"),
        pytest.param((4060, 40197, 40501, 40613, 10928, 10929, 49918, 49919, 49920), "outage", id="Azure"),
        pytest.param((10936, 40143, 40540, 4221), "outage", id="Azure, not available"),
        pytest.param((40549, 40550, 40551, 40552, 40553), "outage", id="Azure, session ended"),
        # syntax, no such object, duplicate, foreign key, conversion, raised by the application
        pytest.param((102, 208, 2627, 547, 245, 50000), "neither", id="its own"),
    ],
)
def test_error_numbers_are_classified(numbers: tuple[int, ...], kind: str) -> None:
    answers = {f"WRITE {number};": Failure(number) for number in numbers}
    with served(**answers) as engine, engine.connect() as connection:
        adapter = adapter_for(engine.dialect)
        errors = {number: raised(lambda n=number: connection.execute(text(f"WRITE {n};"))) for number in numbers}  # type: ignore[misc]
    assert {number: taken_for(adapter, error) for number, error in errors.items()} == dict.fromkeys(numbers, kind)


@pytest.mark.parametrize(
    "value", ["(1205)", "(1205) (SQLExecDirectW)", "(1205) (SQLExecDirectW); [40001] x (1205)", "; [40001] x (1205)"]
)
def test_a_number_in_a_value_is_not_an_error_number(value: str) -> None:
    adapter, error = error_of(Failure(2627, f"The duplicate key value is ({value})."))
    assert isinstance(error, DBAPIError)
    assert taken_for(adapter, error) == "neither"
    assert adapter.connections.is_duplicate(error)  # FreeTDS calls it no IntegrityError


def test_a_connection_that_is_dropped_in_the_middle_is_an_outage() -> None:
    assert taken_for(*error_of(Drop())) == "outage"


def test_a_statement_timeout_is_not_an_outage() -> None:
    with served(WRITE=Silence(5)) as engine, engine.connect() as connection:
        adapter_for(engine.dialect).connections.limit_time(connection, timedelta(seconds=1))
        error = raised(lambda: connection.execute(text("WRITE")))
        assert taken_for(adapter_for(engine.dialect), error) == "neither"


def test_a_sql_task_that_takes_too_long_has_failed() -> None:
    with served(WRITE=Silence(5)) as engine:
        executor = RequestExecutor(engine.url, {}, timeout=timedelta(seconds=1), limit=1_000)
        with pytest.raises(RequestFailed, match="HYT00") as failed:
            executor.execute("WRITE", user=None, timeout=None)
    assert failed.value.code == "timeout"


def test_no_outcome_is_dropped_that_takes_too_long_to_be_written(task: Task) -> None:
    with served(**{r"\btask\b": Silence(5)}) as engine:
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "timeout", 1))
        assert not is_dropped(sessionmaker(engine, class_=QueueSession), task)


DEADLOCK: dict[str, Answer] = {"WRITE": Failure(1205), "ROLLBACK TRAN": Failure(3903)}
"""It ends the transaction, including all savepoints."""


def test_a_deadlock_within_a_savepoint_is_reported_as_one() -> None:
    with served(**DEADLOCK) as engine, Session(engine) as session:
        adapter = adapter_for(engine.dialect)

        def write() -> None:
            with adapter.connections.tentative(session):
                session.execute(text("WRITE"))

        error = raised(write)
        assert "1205" in str(error.orig)
        assert taken_for(adapter, error) == "transient"


def test_a_key_violation_that_ends_the_transaction_is_reported() -> None:
    """This happens with XACT_ABORT; continuing would lose the earlier writes."""
    with served(WRITE=Failure(2627), **{"ROLLBACK TRAN": Failure(3903)}) as engine, Session(engine) as session:
        adapter = adapter_for(engine.dialect)

        def write() -> None:
            with adapter.connections.tentative(session):
                session.execute(text("WRITE"))

        error = raised(write)
        assert "3903" in str(error.orig)
        assert taken_for(adapter, error) == "neither"


def test_a_deadlock_within_a_savepoint_is_transient() -> None:
    with served(**DEADLOCK) as engine, engine.connect() as connection:

        def write() -> None:
            with connection.begin_nested():
                connection.execute(text("WRITE"))

        assert taken_for(adapter_for(engine.dialect), raised(write)) == "transient"
        connection.invalidate()


def test_losing_a_savepoint_without_reason_is_an_error() -> None:
    with served(**{"ROLLBACK TRAN": Failure(3903)}) as engine, engine.connect() as connection:
        savepoint = connection.begin_nested()
        assert taken_for(adapter_for(engine.dialect), raised(savepoint.rollback)) == "neither"
        connection.invalidate()


@pytest.mark.parametrize(
    ("number", "kind"), [(1205, "transient"), (40613, "outage"), (20009, "outage"), (208, "neither")]
)
def test_error_numbers_of_pymssql_are_classified(number: int, kind: str) -> None:
    """It is not among the tests' drivers; its errors have one argument, a number and a text."""
    adapter = adapter_for(mssql.dialect())  # type: ignore[no-untyped-call]
    error = DBAPIError("WRITE", None, Exception((number, b"as the test has it (1205)")))
    assert adapter.connections.error_code(error) == number
    assert taken_for(adapter, error) == kind


def test_a_limit_for_one_request_leaves_the_timeout_of_the_application() -> None:
    with served() as engine:
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "timeout", 60))
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            with adapter_for(engine.dialect).connections.time_limit(connection, timedelta(seconds=2)):
                assert driver.timeout == 2
            assert driver.timeout == 60
