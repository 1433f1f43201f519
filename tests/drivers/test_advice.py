"""The advice of `check` for drivers that wait forever for a silent server. Each fix is executed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from sqlqueue.dialects import adapter_for
from tests.drivers.cases import ODBC, ODBC_ASYNC, url_of
from tests.drivers.tds import GREETINGS, FakeServer
from tests.support.harness import Database

DRIVERS = {"asyncpg": "postgresql", "aiomysql": "mysql", "asyncmy": "mysql"}


async def advised(url: URL, **options: Any) -> Any:
    engine = create_async_engine(url, **options)
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        advice = adapter_for(engine.dialect).connections.driver_advice(raw.driver_connection)
    await engine.dispose()
    return advice


@pytest.fixture(params=DRIVERS)
def asynchronous(request: pytest.FixtureRequest, sync_db: Database) -> URL:
    """Return the URL of the server for an asynchronous driver."""
    driver = request.param
    pytest.importorskip(driver)
    if sync_db.url.get_backend_name() != DRIVERS[driver]:
        pytest.skip("another engine's driver")
    return sync_db.url.set(drivername=f"{DRIVERS[driver]}+{driver}")


@pytest.mark.requires("container")
def test_asynchronous_drivers(asynchronous: URL) -> None:
    advice = asyncio.run(advised(asynchronous))
    assert advice is not None
    options = re.search(r"create_async_engine\(\.\.\., connect_args=({.*?})\)", advice)
    assert options is not None
    assert asyncio.run(advised(asynchronous, connect_args=eval(options[1]))) is None


def test_pyodbc() -> None:
    with FakeServer(GREETINGS).listening() as port:
        engine = create_engine(url_of(ODBC, port))
        connections = adapter_for(engine.dialect).connections
        with engine.connect() as connection:
            advice = connections.driver_advice(connection.connection.driver_connection)
        engine.dispose()
        assert advice is not None
        eval(advice.partition(", or longer")[0], {"event": event, "engine": engine})
        with engine.connect() as connection:
            assert connections.driver_advice(connection.connection.driver_connection) is None
        engine.dispose()


def test_aioodbc() -> None:
    with FakeServer(GREETINGS).listening() as port:
        url = url_of(ODBC_ASYNC, port)
        advice = asyncio.run(advised(url))
        assert advice is not None
        function, _, options = advice.partition(", or longer")[0].partition("; create_async_engine(..., ")
        names: dict[str, Any] = {}
        exec(function, names)
        assert asyncio.run(advised(url, **eval(f"dict({options}", names))) is None


def test_oracledb() -> None:
    """Without a server, this only shows that the driver has the recommended settings."""
    oracledb = pytest.importorskip("oracledb")
    assert all(hasattr(kind, "call_timeout") for kind in (oracledb.Connection, oracledb.AsyncConnection))
    assert oracledb.ConnectParams(tcp_connect_timeout=10, expire_time=1).expire_time == 1
