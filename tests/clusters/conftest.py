from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clusters.galera import Galera
from tests.clusters.nodes import MARIADB
from tests.clusters.standby import Pair
from tests.clusters.workers import ClusterWorkers
from tests.support.containers import Unavailable

Printed = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the time limit, since a cluster takes long to start."""
    for item in items:
        if item.path.parent == item.config.rootpath / "tests" / "clusters":
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that prints a figure even if the test passes."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")

    return show


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    with ExitStack() as stack:
        try:
            cluster = Galera(stack)
        except Unavailable as reason:
            _missing(reason)
        yield cluster


@pytest.fixture(params=["synchronous", "asynchronous"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        try:
            pair = Pair(stack, synchronous=request.param == "synchronous")
        except Unavailable as reason:
            _missing(reason)
        yield pair


@pytest.fixture
def workers(galera: Galera) -> Iterator[ClusterWorkers]:
    workers = ClusterWorkers(MARIADB, galera.nodes[0].engine)
    yield workers
    workers.close()


def _missing(reason: Unavailable) -> None:
    if os.environ.get("SQLQUEUE_REQUIRE_CLUSTERS"):
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))
