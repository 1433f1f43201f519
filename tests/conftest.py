"""The fixtures `db` (every engine, sync and async) and `sync_db` (every engine), and the run's beginning and end."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator

import pytest

from tests.databases import Databases
from tests.engines import REQUIRED, SELECTED, EngineCase
from tests.harness import Database
from tests.processes import Processes
from tests.servers import Servers, Unavailable
from tests.summary import pytest_terminal_summary  # noqa: F401  (a hook)

SERVERS = pytest.StashKey[Servers]()
MODES = ("sync", "async")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = Servers()
    os.environ["TZ"] = "Asia/Kolkata"  # what depends on the host's time zone is to fail on every machine
    time.tzset()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Servers start before the first test: its timeout is not theirs.  Side by side, each process starts what it is
    given tests for."""
    if not session.config.option.collectonly and session.config.getoption("dist", "no") == "no":
        session.config.stash[SERVERS].start({case for item in session.items for case in _cases(item)})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of one engine stay together: with ``--dist loadgroup``, in one process and on one server."""
    for item in items:
        for case in _cases(item):
            item.add_marker(pytest.mark.xdist_group(case.name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged may be no text that goes from one process to another: some are about just that."""
    report = yield
    report.sections = [(title, text.encode(errors="replace").decode()) for title, text in report.sections]
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SERVERS].stop()


def _cases(item: pytest.Item) -> list[EngineCase]:
    parameters = getattr(item, "callspec", None)
    return [value[0] for name, value in parameters.params.items() if name in ("db", "sync_db")] if parameters else []


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    opened = Databases(request.config.stash[SERVERS])
    yield opened
    opened.dispose()


@pytest.fixture(params=[pytest.param((case, mode), id=f"{case.name}-{mode}") for case in SELECTED for mode in MODES])
def db(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    yield from _database(request, databases)


@pytest.fixture(params=[pytest.param((case, "sync"), id=case.name) for case in SELECTED])
def sync_db(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    yield from _database(request, databases)


@pytest.fixture
def processes() -> Iterator[Processes]:
    children = Processes()
    yield children
    children.end_test()


def _database(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    case, mode = request.param
    note = request.node.user_properties.append
    note(("engine", case.name))
    try:
        database = databases.get(case, mode)
    except Unavailable as reason:
        note(("server", f"none: {reason}"))
        if case.name in REQUIRED:
            pytest.fail(f"{case.name}: {reason}", pytrace=False)
        pytest.skip(f"{case.name}: {reason}")
    note(("server", databases.describe(case)))
    for marker in request.node.iter_markers("requires"):
        for capability in marker.args:
            if not getattr(case, capability):
                pytest.skip(f"{case.name} lacks {capability}")
    yield database
    database.end_test()
    databases.empty(case)
