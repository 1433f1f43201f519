from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

Workloads = dict[EngineCase, Workload | Unavailable]


@pytest.fixture(scope="module")
def workloads(request: pytest.FixtureRequest) -> Iterator[Workloads]:
    """Start all servers that this run needs, in parallel."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [*dict.fromkeys(each.params["workload"] for each in parameters if each and "workload" in each.params)]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        made = dict(zip(cases, pool.map(lambda case: _started(case, stack), cases), strict=True))
        yield made


def _started(case: EngineCase, stack: ExitStack) -> Workload | Unavailable:
    try:
        workload = Workload(FrailServer(case, stack))
    except Unavailable as reason:
        return reason
    stack.callback(workload.close)
    return workload


@pytest.fixture(params=[pytest.param(case, id=case.name) for case in SELECTED if case.container])
def workload(request: pytest.FixtureRequest, workloads: Workloads) -> Iterator[Workload]:
    case: EngineCase = request.param
    found = workloads[case]
    note = request.node.user_properties.append
    note(("engine", case.name))
    if isinstance(found, Unavailable):
        note(("server", f"none: {found}"))
        if case.name in REQUIRED and not isinstance(
            found, NoDocker
        ):  # the engine is available in another way, or missing
            pytest.fail(f"{case.name}: {found}", pytrace=False)
        pytest.skip(f"{case.name}: {found}")
    note(("server", f"{found.server.server.version} ({found.server.server.origin})"))
    found.begin_test()
    yield found
    found.end_test()


@pytest.fixture
def hole(db: Database) -> Iterator[BlackHole]:
    track(db.engine, LEASE)  # as if another worker used it, whose idle connections must stay open
    with closing(BlackHole(db.url)) as made:
        yield made
