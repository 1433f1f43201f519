"""A RabbitMQ broker for a test, with its own files, ports and name."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

PLACES = ("/usr/lib/rabbitmq/bin", os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")
"""The directories of RabbitMQ's programs; Debian's script in the PATH runs only as another user and in that user's
directories."""


@contextmanager
def rabbitmq() -> Iterator[int]:
    """Yield the port of a broker on this host, which ends with the block."""
    server, mapper = _program("rabbitmq-server"), _program("epmd")
    port, distribution, mapping = _free_ports(3)
    with tempfile.TemporaryDirectory(prefix="sqlqueue-rabbitmq-") as name, ExitStack() as stack:
        directory = Path(name)
        environment = os.environ | {
            "HOME": name,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapping),
            "RABBITMQ_NODENAME": f"sqlqueue-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "none"),
        }
        log = stack.enter_context((directory / "out").open("wb"))
        for command in ([mapper, "-port", str(mapping)], [server]):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(_end, process)
        _wait_for(port, process, directory / "out")
        yield port


def _program(name: str) -> str:
    found = shutil.which(name, path=":".join(PLACES))
    if found is None:
        missing = f"{name} is not installed (Debian: apt-get install rabbitmq-server)"
        pytest.fail(missing, pytrace=False) if os.environ.get("SQLQUEUE_REQUIRE_RABBITMQ") == "1" else pytest.skip(
            missing
        )
    return found


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the broker does not listen: {log.read_text()}")
