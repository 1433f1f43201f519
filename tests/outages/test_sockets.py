"""The sockets of drivers, their keepalive times, and that closed ones are not touched."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from sqlqueue._support.sockets import Socket, keep_alive
from sqlqueue.cli._database import connect
from sqlqueue.dialects import adapter_for
from sqlqueue.worker.deadlines import UNREACHABLE
from tests.outages.blackhole import BlackHole, through
from tests.support.harness import Database

pytestmark = pytest.mark.asyncio_everywhere


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no such option")
@pytest.mark.requires("container")
def test_a_command_has_limits_against_silence(sync_db: Database) -> None:
    def told(connection: Connection) -> int:
        descriptor = adapter_for(connection.dialect).connections.descriptor(connection.connection.driver_connection)
        assert descriptor is not None
        with socket.socket(fileno=socket.dup(descriptor)) as copy:
            return copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    with closing(BlackHole(sync_db.url)) as hole:  # a listener with TCP connections, whatever the server uses
        for driver in (sync_db.case.sync_driver, sync_db.case.async_driver):
            url = through(hole, sync_db.url).set(drivername=driver).render_as_string(hide_password=False)
            assert 0 < connect(url, told) <= UNREACHABLE.total_seconds() * 1000


@pytest.mark.requires("container")
def test_the_socket_of_each_driver_is_known(db: Database, hole: BlackHole) -> None:
    """Some drivers have no public attribute for it, and may rename the private one."""
    engine = db.variant(url=through(hole, db.url))
    with engine.session() as actor:
        descriptor = actor.run(descriptor_of)
        with socket.socket(fileno=socket.dup(descriptor)) as copy:
            assert copy.getpeername()[1] == hole.port
        Socket(descriptor).shut_down()
        with pytest.raises(DBAPIError) as caught:
            actor.execute(text("SELECT 1"))
        assert adapter_for(engine.session_engine.dialect).connections.is_outage(caught.value)


def test_a_closed_socket_is_not_shut_down() -> None:
    """Its descriptor may have been reused for another socket."""
    one, other = socket.socketpair()
    with other:
        sock = Socket(descriptor := one.fileno())
        one.close()
        first, second = socket.socketpair()
        with first, second:
            assert descriptor in (first.fileno(), second.fileno())
            assert not sock.shut_down()
            first.sendall(b"x")
            assert second.recv(1) == b"x"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no such options")
def test_keepalive_times_are_set_on_the_socket() -> None:
    def options() -> tuple[int, ...]:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        return tuple(client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)  # a shorter time, which is kept
        keep_alive(client.fileno(), timedelta(seconds=18))
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert options() == (4, 3, 3, 18_000)


def descriptor_of(session: Any) -> int:
    connection = session.connection()
    driver = connection.connection.driver_connection
    found = adapter_for(connection.dialect).connections.descriptor(driver)
    assert found is not None
    return found
