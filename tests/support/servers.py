"""Starts the servers that the tests need, once per run, and reports why one is unavailable."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from threading import Lock
from typing import Any

from sqlalchemy import URL, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError, NoSuchModuleError

from tests.support.engines import CHOSEN, REQUIRED, Container, EngineCase
from tests.support.given import Refused, move_in

MEMORY = "/dev/shm"
_STARTING = (
    Lock()
)  # the library creates its cleanup container together with the first container, and is not thread-safe


class Unavailable(Exception):
    """An error for an engine without an available server; the message contains the reason."""


class NoDocker(Unavailable):
    """An error for a machine on which no containers can be started."""


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

    def start(self, cases: Iterable[EngineCase]) -> None:
        """Start servers in parallel: the total time is that of the slowest engine."""
        pending = [case for case in cases if case not in self._found]
        for case in pending:
            if reason := missing_driver(case):
                self._found[case] = reason
        startable = [case for case in pending if case not in self._found]
        with ThreadPoolExecutor() as pool:
            self._found |= zip(startable, pool.map(self._find, startable), strict=True)

    def get(self, case: EngineCase) -> Server:
        self.start([case])
        found = self._found[case]
        if isinstance(found, Unavailable):
            raise Unavailable(*found.args)  # an exception that is raised repeatedly accumulates tracebacks
        return found

    def stop(self) -> None:
        self._stack.close()

    def _find(self, case: EngineCase) -> Server | Unavailable:
        try:
            return _find(case, self._stack)
        except Unavailable as reason:
            return reason


def missing_driver(case: EngineCase) -> Unavailable | None:
    for driver in (case.sync_driver, case.async_driver):
        try:
            URL.create(driver).get_dialect().import_dbapi()
        except (ImportError, NoSuchModuleError) as error:
            return Unavailable(f"no driver {driver}: {_first_line(error)}")
    return None


def _find(case: EngineCase, stack: ExitStack) -> Server:
    if case.given:
        return _given(case, case.given)
    reason = Unavailable(f"{case.name} has no source but {case.url_variable}")
    if case.container:
        try:
            return contained(case, case.container, stack)[0]
        except Unavailable as refusal:
            reason = refusal
    if case.embedded is None:
        raise reason
    parent = MEMORY if case.small and os.access(MEMORY, os.W_OK) else None
    temporary = tempfile.TemporaryDirectory(prefix="sqlqueue-", dir=parent, ignore_cleanup_errors=True)
    directory = Path(stack.enter_context(temporary))
    try:
        return answering(make_url(case.embedded(directory)), "embedded")
    except ImportError as error:
        raise Unavailable(f"{reason}, and {error.name} is not installed") from error
    except (OSError, SubprocessError) as error:
        raise Unavailable(f"{reason}, and the embedded server does not start: {_first_line(error)}") from error


def _given(case: EngineCase, url: URL) -> Server:
    server = answering(url, case.url_variable)
    try:
        move_in(case, url)
    except Refused as reason:
        raise Unavailable(f"{case.url_variable}: {reason}") from reason
    return server


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]


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
        for statement in container.prepare:
            _execute(entrance, statement)
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


def fetch_image(image: str, *, wanted: bool) -> None:
    client = docker_client()
    try:
        client.images.get(image)
        return
    except OSError:  # errors of the client and timeouts are both OSErrors
        if not wanted:
            raise Unavailable(f"{image} is not here, and is pulled only for SQLQUEUE_REQUIRE") from None
    try:
        client.images.get_registry_data(image)  # fails at once, whereas a pull could hang
        client.images.pull(image)
    except OSError as error:
        raise Unavailable(f"{image} is not here and cannot be pulled") from error


def docker_client() -> Any:
    if os.environ.get("SQLQUEUE_TEST_NO_DOCKER"):
        raise NoDocker("SQLQUEUE_TEST_NO_DOCKER is set")
    try:
        import docker
        import testcontainers  # noqa: F401  (both come with the same extra)
    except ImportError as error:
        raise NoDocker(f"{error.name} is not installed") from error
    if not _listens(docker.utils.parse_host(os.environ.get("DOCKER_HOST"))):
        raise NoDocker("Docker does not answer")
    try:
        client = docker.from_env(timeout=10)
        client.ping()
    except docker.errors.DockerException as error:
        raise NoDocker("Docker does not answer") from error
    return client


def _listens(address: str) -> bool:
    """Return whether something accepts connections there; the client leaks a Unix socket that fails to connect."""
    scheme, _, path = address.partition("://")
    if scheme != "http+unix":
        return True  # the client closes sockets of other kinds
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


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
        raise Unavailable(f"{image} does not start: {_first_line(error)}") from error


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


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
                raise Unavailable(f"{origin} does not answer: {_first_line(error.orig)}") from error
            if running and _ended(running):
                raise Unavailable(f"{origin} ended at once: {running.get_logs()}") from error
        time.sleep(0.2)


def _ended(running: Any) -> bool:
    running.reload()
    return bool(running.status == "exited")


def _execute(url: URL, statement: str) -> None:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
