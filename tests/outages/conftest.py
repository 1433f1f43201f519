from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from sqlqueue.worker.deadlines import track
from tests.outages.blackhole import BlackHole
from tests.outages.servers import FrailServer
from tests.outages.silence import LEASE
from tests.outages.workload import Workload
from tests.support.containers import NoDocker, Unavailable
from tests.support.engines import REQUIRED, SELECTED, EngineCase
from tests.support.harness import Database


@pytest.fixture(
    scope="module", params=[pytest.param(case, id=case.name) for case in SELECTED if case.container is not None]
)
def started(request: pytest.FixtureRequest) -> Iterator[Workload | Unavailable]:
    with ExitStack() as stack:
        try:
            made = Workload(FrailServer(request.param, stack))
        except Unavailable as reason:
            yield reason
        else:
            stack.callback(made.close)
            yield made


@pytest.fixture
def workload(request: pytest.FixtureRequest, started: Workload | Unavailable) -> Iterator[Workload]:
    case: EngineCase = request.node.callspec.params["started"]
    note = request.node.user_properties.append
    note(("engine", case.name))
    if isinstance(started, Unavailable):
        note(("server", f"none: {started}"))
        if case.name in REQUIRED and not isinstance(
            started, NoDocker
        ):  # the engine is available in another way, or missing
            pytest.fail(f"{case.name}: {started}", pytrace=False)
        pytest.skip(f"{case.name}: {started}")
    note(("server", f"{started.server.server.version} ({started.server.server.origin})"))
    started.begin_test()
    yield started
    started.end_test()


@pytest.fixture
def hole(db: Database) -> Iterator[BlackHole]:
    track(db.engine, LEASE)  # as if another worker used it, whose idle connections must stay open
    with closing(BlackHole(db.url)) as made:
        yield made
