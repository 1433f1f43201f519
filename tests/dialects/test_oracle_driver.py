"""The claim on Oracle with the real driver but without a server: its connections, cursors and variables. Nothing is
sent. Statements that reach a cursor are recorded, and the out parameter is filled as the server would fill it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from sqlqueue import AsyncQueueSession, QueueSession
from sqlqueue.dialects import adapter_for
from tests.dialects.recorder import ROWID, recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.support.models import Task

oracledb = pytest.importorskip("oracledb")
thin_impl = pytest.importorskip("oracledb.thin_impl")


LOBS = (oracledb.DB_TYPE_CLOB, oracledb.DB_TYPE_NCLOB)
"""The variables that a server would fill."""


class SentError(Exception):
    """Raised when a statement would be sent to the server."""


async def unconnected(kind: type[Any]) -> Any:
    """A connection of the driver that appears open until it would send something."""
    parameters = oracledb.ConnectParams(user="u", password="p")
    try:
        implementation = thin_impl.ThinConnImpl(parameters._impl)
    except TypeError:
        pytest.skip(f"python-oracledb {oracledb.__version__} builds its connections in another way")
    connection = kind.__new__(kind)
    connection._impl = implementation
    return connection


def noting(engine: Engine) -> list[tuple[str, Any]]:
    """Record every statement and its parameters on the way to a real cursor."""
    engine.dialect.server_version_info = (23, 0, 0)
    engine.dialect.default_isolation_level = "READ COMMITTED"
    for farewell in ("do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, farewell, lambda connection: None)
    sent: list[tuple[str, Any]] = []

    @event.listens_for(engine, "do_execute")
    @event.listens_for(engine, "do_executemany")
    def note(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        sent.append((statement, parameters))
        if "rowids" not in parameters or parameters["rowids"].type in LOBS:
            raise SentError
        parameters["rowids"].setvalue(0, f"{ROWID},")
        return True

    return sent


def sent_sync(call: Callable[[QueueSession], Any]) -> list[tuple[str, Any]]:
    connection = asyncio.run(unconnected(oracledb.Connection))
    options: dict[str, Any] = {"creator": lambda: connection, "poolclass": StaticPool, "_initialize": False}
    engine = create_engine("oracle+oracledb://", **options)
    sent = noting(engine)
    with QueueSession(engine) as session, pytest.raises(SentError):
        call(session)
    return sent


def sent_async(call: Callable[[QueueSession], Any]) -> list[tuple[str, Any]]:
    async def run() -> list[tuple[str, Any]]:
        async def connect() -> Any:
            return await unconnected(oracledb.AsyncConnection)

        options: dict[str, Any] = {"async_creator": connect, "poolclass": StaticPool, "_initialize": False}
        engine = create_async_engine("oracle+oracledb_async://", **options)
        sent = noting(engine.sync_engine)
        async with AsyncQueueSession(engine) as session:
            with pytest.raises(SentError):
                await session.run_sync(call)
        return sent

    return asyncio.run(run())


both = pytest.mark.parametrize("send", [sent_sync, sent_async])


@both
@pytest.mark.parametrize("limit", [1, 200, 201, 300, 1_000])
def test_the_out_parameter_has_room(send: Callable[..., Any], limit: int) -> None:
    (_, parameters), *_ = send(lambda session: session.claim_many(Task, limit=limit))
    rowids = parameters["rowids"]
    assert isinstance(rowids, oracledb.Var)
    assert parameters["sqlqueue_wanted"] == limit
    assert rowids.type in LOBS or rowids.size >= limit * len(f"{ROWID},")


@both
@pytest.mark.parametrize("lease", ["default", None])
def test_no_locking_cursor_is_left_to_the_driver(send: Callable[..., Any], lease: Any) -> None:
    # it would prefetch, and so lock, rows by itself: two and then a hundred, or with asyncio all of them
    sent = send(lambda session: session.claim_many(Task, limit=3, lease=lease))
    locking = [statement for statement, _ in sent if "FOR UPDATE" in statement]
    assert len(locking) == 1
    assert all(statement.startswith("DECLARE") for statement in locking)


@both
def test_rows_are_loaded_by_the_returned_keys(send: Callable[..., Any]) -> None:
    *_, (statement, parameters) = send(lambda session: session.claim_many(Task, limit=3))
    assert statement.startswith("SELECT")
    assert list(parameters.values()) == [ROWID]


@both
def test_rows_are_inserted_as_one_batch(send: Callable[..., Any]) -> None:
    ((statement, parameters),) = send(lambda session: session.enqueue(Task, [{"name": "a"}, {"name": "b"}]))
    assert statement.startswith("INSERT")
    assert [row["name"] for row in parameters] == ["a", "b"]


def test_a_limit_for_one_request_leaves_the_timeout_of_the_application() -> None:
    engine, _ = recording_engine(*ENGINES["oracle"])
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.call_timeout = 60_000
        with adapter_for(engine.dialect).connections.time_limit(connection, timedelta(seconds=2)):
            assert driver.call_timeout == 2_000
        assert driver.call_timeout == 60_000
