"""The attributes of drivers that adapters use, some of which are private: in each driver they do what they are used
for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from socket import socket
from typing import Any

from sqlalchemy import Connection, event

from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.connections import Connections
from tests.drivers.any_driver import engine_with, on_a_loop, on_network_drivers
from tests.support.harness import Database

SHORT = timedelta(seconds=1)


@contextmanager
def connected(driver: str, database: Database, **arguments: Any) -> Iterator[tuple[Connections, Connection, Any]]:
    """Yield the engine's part about connections, a connection, and that of the driver, opened with ``arguments``."""
    with engine_with(driver, database) as engine:
        event.listen(engine, "do_connect", lambda _, __, ___, given: given.update(arguments))
        with engine.connect() as connection:
            yield adapter_for(engine.dialect).connections, connection, connection.connection.driver_connection


@on_network_drivers
@on_a_loop
def test_the_socket_of_a_connection(sync_db: Database, driver: str) -> None:
    with connected(driver, sync_db) as (connections, _, opened):
        descriptor = connections.descriptor(opened)
        assert descriptor is not None
        with socket(fileno=os.dup(descriptor)) as found:
            assert found.getpeername() is not None


@on_network_drivers
@on_a_loop
def test_the_limits_of_connecting_do_not_end_statements(sync_db: Database, driver: str) -> None:
    limits = adapter_for(sync_db.engine.dialect).connections.connect_limits(driver.partition("+")[2], SHORT)
    assert limits
    with connected(driver, sync_db, **limits) as (connections, connection, opened):
        connections.lift_connect_limits(opened, limits)
        sleep = "pg_sleep" if connection.engine.name == "postgresql" else "sleep"
        connection.exec_driver_sql(f"SELECT {sleep}(1.5)").close()
