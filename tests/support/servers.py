"""Starts the servers that the tests need, once per run, and reports why one is unavailable."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from threading import Lock
from typing import Any

from sqlalchemy import URL, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tests.support.containers import Unavailable, fetch_image, first_line
from tests.support.engines import CHOSEN, REQUIRED, Container, EngineCase
from tests.support.given import Refused, move_in

MEMORY = "/dev/shm"
_STARTING = Lock()
"""The library creates its cleanup container together with the first container, and is not thread-safe."""


@dataclass(frozen=True, slots=True)
class Server:
    url: URL
    version: str
    origin: str


class Servers:
    """Every engine's server, started on first use and stopped together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._found: dict[EngineCase, Server | Unavailable] = {}

    def get(self, case: EngineCase) -> Server:
        if case not in self._found:
            try:
                self._found[case] = _find(case, self._stack)
            except Unavailable as reason:
                self._found[case] = reason
        found = self._found[case]
        if isinstance(found, Unavailable):
            raise Unavailable(*found.args)  # an exception that is raised repeatedly accumulates tracebacks
        return found

    def stop(self) -> None:
        self._stack.close()


def _find(case: EngineCase, stack: ExitStack) -> Server:
    if reason := case.missing_driver:
        raise Unavailable(reason)
    if case.given:
        return _given(case, case.given)
    why = f"{case.name} has no source but {case.url_variable}"
    if case.container:
        try:
            return contained(case, case.container, stack)[0]
        except Unavailable as reason:
            why = str(reason)
    if case.embedded is None:
        raise Unavailable(why)
    parent = MEMORY if case.small and os.access(MEMORY, os.W_OK) else None
    temporary = tempfile.TemporaryDirectory(prefix="sqlqueue-", dir=parent, ignore_cleanup_errors=True)
    directory = Path(stack.enter_context(temporary))
    try:
        return answering(make_url(case.embedded(directory)), "embedded")
    except ImportError as error:
        raise Unavailable(f"{why}, and {error.name} is not installed") from error
    except (OSError, SubprocessError) as error:
        raise Unavailable(f"{why}, and the embedded server does not start: {first_line(error)}") from error


def _given(case: EngineCase, url: URL) -> Server:
    server = answering(url, case.url_variable)
    try:
        move_in(case, url)
    except Refused as reason:
        raise Unavailable(f"{case.url_variable}: {reason}") from reason
    return server


def contained(case: EngineCase, container: Container, stack: ExitStack) -> tuple[Server, Any]:
    """Start a server in a container, which ends with the stack, and wait until it responds."""
    image = os.environ.get(case.image_variable, container.image)
    _check_odbc_driver(container)
    fetch_image(image, wanted=not container.large or case.name in REQUIRED | CHOSEN)
    running = _run(image, container)
    stack.callback(running.stop)
    url = container.url(case.sync_driver, *_address(running, container))
    if container.prepare:
        entrance = url._replace(database=None)
        answering(entrance, image, running, container.patience.total_seconds())
        with create_engine(entrance, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in container.prepare:
                connection.exec_driver_sql(statement)
    return answering(url, image, running, container.patience.total_seconds()), running.get_wrapped_container()


def _address(running: Any, container: Container) -> tuple[str, int]:
    """Return the host and port; a fixed port is the host's, since a restarted container may get another address."""
    if container.host_port is not None:
        return running.get_docker_client().host(), container.host_port
    return running.get_container_host_ip(), int(running.get_exposed_port(container.port))


def _check_odbc_driver(container: Container) -> None:
    if driver := container.query.get("driver"):
        import pyodbc

        if driver not in pyodbc.drivers():
            raise Unavailable(f"{driver} is not installed")


def _run(image: str, container: Container) -> Any:
    from testcontainers.core.container import DockerContainer

    description = DockerContainer(image, stop_signal=container.stop_signal)
    description = description.with_bind_ports(container.port, container.host_port)
    for name, value in container.environment.items():
        description = description.with_env(name, value)
    if command := f"{container.command} {container.fast}".strip():
        description = description.with_command(command)
    if container.in_memory:
        description = description.with_tmpfs_mount(container.in_memory)
    try:
        with _STARTING:
            return description.start()
    except OSError as error:
        raise Unavailable(f"{image} does not start: {first_line(error)}") from error


def answering(url: URL, origin: str, running: Any = None, patience: float = 10) -> Server:
    """Wait for a connection: images report that they are ready too early, or twice."""
    deadline = time.monotonic() + patience
    engine = create_engine(url, poolclass=NullPool)
    while True:
        try:
            with engine.connect():
                version = engine.dialect.server_version_info or ()
                return Server(url, ".".join(map(str, version[:3])), origin)
        except DBAPIError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"{origin} does not answer: {first_line(error.orig)}") from error
            if running:
                running.reload()
                if running.status == "exited":
                    raise Unavailable(f"{origin} ended at once: {running.get_logs()}") from error
        time.sleep(0.2)
