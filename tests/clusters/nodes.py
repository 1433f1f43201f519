"""Servers in containers that reach each other by name, each with a constant address on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from tests.support.containers import Unavailable, docker_client, fetch_image, free_port
from tests.support.engines import ENGINES, EngineCase

START = 120.0
"""Seconds for a node to start, initialize, and copy its data from another."""
_CASES = {case.name: case for case in ENGINES}
MARIADB, POSTGRESQL = _CASES["mariadb"], _CASES["postgresql"]
IMAGES = {
    # the official image, which includes Galera's library
    "galera": os.environ.get("SQLQUEUE_TEST_GALERA_IMAGE", "mariadb:11.8"),
    "postgresql": os.environ.get(POSTGRESQL.image_variable, "postgres:18"),
}
"""The images of all clusters."""


class Network:
    """The nodes of one cluster, which end with the stack."""

    def __init__(self, image: str, case: EngineCase, stack: ExitStack) -> None:
        client = docker_client()
        fetch_image(image, wanted=True)
        self.image = image
        self.case = case
        self._client = client
        self._stack = stack
        self._network = client.networks.create(f"sqlqueue-{os.urandom(4).hex()}")
        stack.callback(self._network.remove)

    def run(self, name: str, script: str, environment: Mapping[str, str], *, user: str | None = None) -> Node:
        """Start a node whose container runs ``script`` instead of the image's own program."""
        port = free_port()
        assert self.case.container is not None
        container = self._client.containers.create(
            self.image,
            entrypoint=["sh", "-c", script],
            command=[],
            hostname=name,
            environment=dict(environment),
            ports={self.case.container.port: ("127.0.0.1", port)},
            network=self._network.name,
            networking_config={self._network.name: self._client.api.create_endpoint_config(aliases=[name])},
            user=user,
        )
        self._stack.callback(container.remove, force=True, v=True)
        container.start()
        return Node(container, self.case.container.url(self.case.sync_driver, "127.0.0.1", port))


class Node:
    def __init__(self, container: Any, url: URL) -> None:
        self.url = url
        self._container = container
        self.engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def kill(self) -> None:
        """Kill the node, as if its machine had lost power."""
        self._container.kill()

    def start(self) -> None:
        self._container.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the node: its connections stay open, but it does not respond."""
        self._container.pause()
        try:
            yield
        finally:
            self._container.unpause()

    def ask(self, statement: str) -> Any:
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(statement).first()

    def tell(self, *statements: str) -> None:
        with self.engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def wait_until(self, holds: Callable[[Any], bool], statement: str) -> None:
        """Wait until it responds to ``statement`` with a row for which ``holds`` is true."""
        deadline = time.monotonic() + START
        while True:
            found: object
            try:
                found = self.ask(statement)
                if holds(found):
                    return
            except DBAPIError as error:
                found = error
            self._container.reload()
            if self._container.status == "exited" or time.monotonic() > deadline:
                raise Unavailable(f"{found}\n{self._container.logs(tail=30).decode(errors='replace')}")
            time.sleep(0.2)


def urls(nodes: Sequence[Node]) -> URL:
    """Return a URL for all of ``nodes``, with which clients choose the one that accepts writes."""
    first = nodes[0].url
    query = {
        "host": ",".join(str(node.url.host) for node in nodes),
        "port": ",".join(str(node.url.port) for node in nodes),
        "target_session_attrs": "read-write",
        "connect_timeout": "3",
    }
    return first._replace(host=None, port=None).update_query_dict(query)
