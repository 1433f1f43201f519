"""Whether containers can be started here, and from which images."""

from __future__ import annotations

import os
import socket
from typing import Any


class Unavailable(Exception):
    """An error for an engine without an available server; the message contains the reason."""


class NoDocker(Unavailable):
    """An error for a machine on which no containers can be started."""


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


def find_image(image: str, *, wanted: bool) -> bool:
    """Return whether the image is here already; raise :class:`Unavailable` if it cannot be pulled, or is not ``wanted``
    enough to pull it."""
    client = docker_client()
    try:
        client.images.get(image)
        return True
    except OSError:  # errors of the client and timeouts are both OSErrors
        if not wanted:
            raise Unavailable(f"{image} is not here, and is pulled only for SQLQUEUE_REQUIRE") from None
    try:
        client.images.get_registry_data(image)  # fails at once, whereas a pull could hang
        return False
    except OSError as error:
        raise Unavailable(f"{image} is not here and cannot be pulled") from error


def fetch_image(image: str, *, wanted: bool) -> None:
    if find_image(image, wanted=wanted):
        return
    try:
        docker_client().images.pull(image)
    except OSError as error:
        raise Unavailable(f"{image} is not here and cannot be pulled") from error


def first_line(error: object) -> str:
    return str(error).partition("\n")[0]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
