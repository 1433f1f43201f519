"""The count of round trips, and the delay of the network."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, make_url

from bench import roundtrips
from bench.proxy import proxy
from bench.tests.command import bench, reported
from sqlqueue.evaluation.support import EvaluationError
from tests.support.harness import Database

DELAY = 0.05


# -- the proxy --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[URL]:
    """A server that sends each byte back."""

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1_000):
                connection.sendall(data)

    def accept() -> None:
        connection, _ = listener.accept()
        echo(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield URL.create("postgresql", host="127.0.0.1", port=listener.getsockname()[1])
        thread.join()


def connected(url: URL) -> socket.socket:
    connection = socket.create_connection((url.host, url.port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


def test_each_wait_for_a_response_is_a_round_trip(server: URL) -> None:
    with proxy(server, DELAY) as through, connected(through.url) as client:
        begun = time.monotonic()
        for number in range(1, 4):
            client.sendall(b"a")
            assert received(client, 1) == b"a"
            assert through.round_trips == number
        assert time.monotonic() - begun >= 3 * 2 * DELAY


def test_messages_sent_without_waiting_are_one_round_trip(server: URL) -> None:
    with proxy(server, 1) as through, connected(through.url) as client:
        for letter in (b"a", b"b", b"c"):
            client.sendall(letter)
            time.sleep(0.01)  # more than one packet
        assert received(client, 3) == b"abc"
        assert through.round_trips == 1


def test_the_end_of_a_connection_is_passed_on(server: URL) -> None:
    with proxy(server, DELAY) as through, connected(through.url) as client:
        client.sendall(b"a")
        client.shutdown(socket.SHUT_WR)
        assert received(client, 1) == b"a"
        assert client.recv(1) == b""


def test_an_absent_server_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with proxy(URL.create("postgresql", host="127.0.0.1", port=port), 0) as through, connected(through.url) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize("url", ["postgresql:///test", "sqlite:///x.db"])
def test_a_url_without_a_host_is_rejected(url: str) -> None:
    with pytest.raises(EvaluationError, match="needs the host and port"), proxy(make_url(url), 0):
        pass


# -- in the benchmark -------------------------------------------------------------------------------------------------


@pytest.mark.requires("notifies")
def test_round_trips_are_counted(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_WARM": 6, "_COUNTED": 3, "_JOBS": 20}.items():
        monkeypatch.setattr(roundtrips, name, value)
    figures = reported(sync_db.url, "--only", "roundtrips", "--threads", 2)["roundtrips"]
    found = {(each["operation"], each["name"]): each for each in figures}
    driver = found["claim, commit", "psycopg by hand"]
    assert (driver["round_trips"], driver["statements"]) == (3, 1)  # BEGIN, the statement, COMMIT
    assert driver["milliseconds"] >= 3 * 2
    for operation in ("enqueue, commit", "claim, commit", "complete, commit", "claim, complete, commit"):
        ours = found[operation, "sqlqueue"]
        assert ours["round_trips"] >= ours["statements"] >= 1
    assert found["a job in a worker", "handler(session, job) that inserts a row"]["round_trips"] >= 2  # INSERT, COMMIT
    for name in ("psycopg by hand", "sqlqueue worker"):
        assert found["pick-up, from the commit to the handler", name]["round_trips"] >= 1


@pytest.mark.requires("notifies")
def test_the_network_is_delayed(sync_db: Database) -> None:
    options = ("--only", "enqueue", "--jobs", 5, "--rounds", 1, "--delay", 20)
    figures = reported(sync_db.url, *options)["enqueue"]
    rates = [each["jobs_per_second"]["most"] for each in figures if each["form"].endswith("a commit each")]
    assert rates
    assert max(rates) <= 1 / (2 * 0.020)  # even one round trip takes that long


def test_a_file_has_no_round_trips_and_no_network_to_delay(url: str) -> None:
    assert "roundtrips" not in reported(url, "--only", "roundtrips")
    result = bench(url, "--only", "enqueue", "--delay", 1)
    assert result.exit_code == 2
    assert "needs the host and port" in result.stderr
