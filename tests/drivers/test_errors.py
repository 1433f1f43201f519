"""The classification of each driver's errors, wherever the driver keeps their codes and whatever classes they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from sqlqueue.dialects import adapter_for
from sqlqueue.worker.database import passes
from tests.drivers.any_driver import engine_with, on_a_loop, on_network_drivers, on_other_drivers
from tests.drivers.cases import taken_for
from tests.drivers.listeners import closed, listener
from tests.support.harness import Database


@pytest.fixture
def engine(sync_db: Database, driver: str) -> Iterator[Engine]:
    with engine_with(driver, sync_db) as made:
        yield made


def raised_by(engine: Engine, use: Callable[[Connection], object]) -> DBAPIError:
    """Return the error of a transaction."""

    def transact() -> None:
        with engine.begin() as connection:
            use(connection)

    with pytest.raises(DBAPIError) as caught:
        on_a_loop(transact)()
    return caught.value


@on_other_drivers
@pytest.mark.requires("slow_sql")
def test_a_statement_that_takes_too_long_is_not_an_outage(sync_db: Database, engine: Engine) -> None:
    def be_slow(connection: Connection) -> None:
        for statement in sync_db.case.slow_sql:
            connection.exec_driver_sql(statement)

    error = raised_by(engine, be_slow)
    adapter = adapter_for(engine.dialect)
    assert taken_for(adapter, error) == "neither"
    assert adapter.connections.is_temporary(error)


@on_other_drivers
@pytest.mark.requires("kill_sql")
def test_a_connection_that_is_killed_is_an_outage(sync_db: Database, engine: Engine) -> None:
    def die(connection: Connection) -> None:
        own = connection.exec_driver_sql(f"SELECT {sync_db.case.connection_id}()").scalar()
        with sync_db.engine.begin() as other:
            other.exec_driver_sql(str(sync_db.case.kill_sql).format(connection=own))
        while True:
            connection.exec_driver_sql("SELECT 1")

    assert taken_for(adapter_for(engine.dialect), raised_by(engine, die)) == "outage"


def test_an_error_of_something_else_is_not_an_outage(sync_db: Database) -> None:
    assert not any(
        map(adapter_for(sync_db.engine.dialect).connections.is_outage, (OSError(), TimeoutError(), ValueError()))
    )


@on_network_drivers
def test_a_server_that_cannot_be_reached_is_an_outage(sync_db: Database, driver: str) -> None:
    """Some drivers raise errors of Python itself, which look like those of an application's own requests."""
    url = URL.create(driver, "ada", "secret", "127.0.0.1", database="queues")
    with closed() as port, pytest.raises((DBAPIError, OSError)) as caught:
        connect_to(url.set(port=port))
    assert_outage(caught.value, url)
    with listener(lambda connection: None) as port, pytest.raises((DBAPIError, OSError)) as caught:
        connect_to(url.set(port=port))
    assert_outage(caught.value, url)


def connect_to(url: URL) -> None:
    made = create_async_engine(url).sync_engine if url.get_dialect().is_async else create_engine(url)
    on_a_loop(made.connect)()


def assert_outage(error: BaseException, url: URL) -> None:
    adapter = adapter_for(url.get_dialect()())
    assert adapter.connections.is_outage(error)
    assert passes(error, adapter)


def test_an_application_that_raises_within_sqlalchemy_is_no_driver(sync_db: Database) -> None:
    def listen(*_: object) -> None:
        raise TimeoutError

    engine = create_engine(sync_db.url, poolclass=NullPool)
    event.listen(engine, "checkout", listen)
    with pytest.raises(TimeoutError) as caught:
        engine.connect()
    assert not adapter_for(engine.dialect).connections.is_outage(caught.value)
