"""The fixtures `db` (every engine, one of them with asyncio) and `sync_db` (every engine), and the run's beginning and
end."""

from __future__ import annotations

import gc
import json
import os
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from tests.support.containers import Unavailable
from tests.support.databases import Databases
from tests.support.engines import ENGINES, REQUIRED, SELECTED, EngineCase
from tests.support.given import move_out
from tests.support.harness import Database
from tests.support.processes import Processes
from tests.support.servers import Servers
from tests.support.summary import sum_up
from tests.support.times import list_times, spent

SERVERS = pytest.StashKey[Servers]()
STARTED = pytest.StashKey[tuple[float, float]]()
MODES = ("sync", "async")
BOTH_MODES = os.environ.get("SQLQUEUE_TEST_BOTH_MODES") == "1"
RARELY = 20_000
"""Objects that are created between two collections of garbage. At Python's default of 700, these take a tenth of the
time of a test."""


def _chosen(case: EngineCase, mode: str) -> Any:
    return pytest.param((case, mode), id=f"{case.name}-{mode}")


def _chosen_sync(case: EngineCase) -> Any:
    return pytest.param((case, "sync"), id=case.name)


_ONE = SELECTED[0]
# the most usual one, whose asyncio driver uses the network
_asyncio_engine = next((case for case in SELECTED if case.name == "postgresql"), _ONE)
_TAKING_TURNS = [case for case in SELECTED if case.name in ("sqlite", "postgresql")] or [_ONE]
CASES_BY_MARK = {
    "asyncio_everywhere": {"db": [_chosen(case, mode) for case in SELECTED for mode in MODES]},
    "asyncio_only": {"db": [_chosen(_asyncio_engine, "async")]},
    "sync_only": {"db": [_chosen(case, "sync") for case in SELECTED]},
    "every_engine": {},  # for a test in a file with another of these marks
    "one_engine": {"db": [_chosen(_ONE, mode) for mode in MODES], "sync_db": [_chosen_sync(_ONE)]},
}
"""The values of the fixtures `db` and `sync_db` in tests with these marks."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = Servers()
    # PyMySQL reads all certificates of the host for each connection, which takes 30 ms; a single one takes 1 ms
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "authority.pem")
    os.environ["TZ"] = "Asia/Kolkata"  # so that code that depends on the host's time zone fails on every machine
    time.tzset()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Apply the mark that chooses the engines to tests that do not choose them themselves."""
    test = metafunc.definition
    is_chosen = [mark.args[0] for mark in test.iter_markers("parametrize")]
    chosen = CASES_BY_MARK[_mark_of(test)] or {"db": _asyncio_in_turns(test)}
    for fixture, cases in chosen.items():
        if fixture in metafunc.fixturenames and fixture not in is_chosen:
            test.add_marker(pytest.mark.parametrize(fixture, cases, indirect=True))


def _mark_of(test: pytest.Item) -> str:
    return next((mark.name for mark in test.iter_markers() if mark.name in CASES_BY_MARK), "every_engine")


def _has_its_turn(item: pytest.Item) -> bool:
    """Return whether a case of a test runs in this mode: with the mark `asyncio_everywhere`, every other case is sync
    on an engine, and the rest is asyncio; a test without several cases runs in both modes."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize") if mark.args[0] != "db"]
    if _mark_of(item) != "asyncio_everywhere" or "db" not in item.fixturenames or not names:
        return True
    case, mode = item.callspec.params["db"]
    first = names[0].split(",")[0] if isinstance(names[0], str) else names[0][0]
    # pytest numbers the cases of a test; those of `db` are its innermost loop
    turn = item.callspec.indices[first] // len(CASES_BY_MARK["asyncio_everywhere"]["db"])
    return MODES[(turn + SELECTED.index(case)) % 2] == mode


def _asyncio_in_turns(test: pytest.Function) -> list[Any]:
    """Return all engines, one of them with asyncio: one with an asyncio driver that uses files and one whose driver
    uses the network take turns, if they have what the test requires."""
    required = [name for mark in test.iter_markers("requires") for name in mark.args]
    able = [case for case in _TAKING_TURNS if all(getattr(case, name) for name in required)]
    if len(able) < 2 or BOTH_MODES:
        return [_chosen(case, mode) for case in SELECTED for mode in MODES if mode == "sync" or case in able]
    turn = able[zlib.crc32(test.nodeid.encode()) % len(able)]
    return [_chosen(case, "async" if case is turn else "sync") for case in SELECTED]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, which would traverse thousands of them each time, then and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(RARELY)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Start servers outside of the test's timeout."""
    for case in _cases(item):
        with suppress(Unavailable):  # the fixture says why
            item.config.stash[SERVERS].get(case)
    item.stash[STARTED] = (spent(), time.monotonic())
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        cpu, begun = item.stash[STARTED]
        item.user_properties += [("cpu", spent() - cpu), ("elapsed", time.monotonic() - begun)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not BOTH_MODES:
        items[:] = filter(_has_its_turn, items)
    if hasattr(config, "workerinput"):
        from tests.support.groups import sort

        sort(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.groups import ByEngine

    config.option.loadscopereorder = False
    return ByEngine(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Escape the text of a report so that it can be passed to another process: some tests log lone surrogates."""
    data = yield
    text = json.dumps(data, ensure_ascii=False)
    return data if text.isascii() else json.loads(text.encode(errors="replace"))


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SERVERS].stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Drop the tables in given databases once all processes of this run have ended."""
    if os.environ.get("SQLQUEUE_TEST_TIMES"):
        list_times(terminalreporter)
    used = sum_up(terminalreporter)
    for given in (case.given for case in ENGINES if case.name in used):
        with suppress(DBAPIError, ImportError):  # the tests were skipped for that
            if given:
                move_out(given)


def _cases(item: pytest.Item) -> list[EngineCase]:
    """Return the engines whose servers a test needs; a parametrization from which nothing is left has none."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    chosen = [parameters.get(name) for name in ("db", "sync_db", "origin")]
    cases = [value[0] if isinstance(value, tuple) else value for value in chosen]
    return [case for case in cases if isinstance(case, EngineCase)]


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    opened = Databases(request.config.stash[SERVERS])
    yield opened
    opened.dispose()


@pytest.fixture
def db(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    yield from _database(request, databases)


@pytest.fixture(params=[_chosen_sync(case) for case in SELECTED])
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
