"""Servers that are unreachable or unavailable, as the real drivers report them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
from sqlalchemy import URL, select

from sqlqueue import Worker
from sqlqueue.worker import Job
from sqlqueue.worker.database import SyncDatabase
from sqlqueue.worker.executor import Executor
from sqlqueue.worker.reports import Liveness, Reports
from tests.drivers import tds, tns
from tests.drivers.cases import (
    ODBC,
    ODBC_ASYNC,
    ORACLE,
    ORACLE_ASYNC,
    adapter_of,
    failing_to_connect,
    taken_for,
    url_of,
)
from tests.drivers.listeners import closed, drop, listener, stay_silent
from tests.drivers.worker_parts import any_sessions_at, handler_with, is_dropped, sessions_at
from tests.support.models import Task
from tests.support.workers import Running, eventually

# python-oracledb leaves sockets closed by the peer to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
Port = Callable[[], AbstractContextManager[int]]
ANYWHERE: dict[str, Port] = {
    "closed": closed,
    "dropping": partial(listener, drop),
    "silent-then-closed": partial(listener, stay_silent(0.5)),
}
HANGS = ("dropping", "silent-then-closed", "accepted-then-dropped")
"""Failures for which python-oracledb before version 4 waits forever with asyncio."""
ORACLES: dict[str, Port] = {
    "accepted-then-dropped": partial(listener, tns.accept_and_drop),
    # no such service, no such instance, no capacity, no handler, all handlers blocked (as during startup)
    **{f"refused-{number}": partial(listener, tns.refuse(number)) for number in (12514, 12505, 12516, 12518, 12528)},
}


def refusing(number: int) -> Port:
    return tds.FakeServer({}, login=tds.Failure(number)).listening


ODBCS: dict[str, Port] = {
    "silent": partial(listener, stay_silent(5)),
    # database cannot be opened, not available, limit reached
    **{f"refused-{number}": refusing(number) for number in (4060, 40613, 10928)},
}
DRIVERS = {ODBC: ODBCS, ODBC_ASYNC: ODBCS, ORACLE: ORACLES, ORACLE_ASYNC: ORACLES}


def cases(*templates: str) -> list[Any]:
    return [
        pytest.param(template, port, id=f"{template.partition(':')[0]}-{name}", marks=_marks(template, name))
        for template in templates
        for name, port in {**ANYWHERE, **DRIVERS[template]}.items()
    ]


def _marks(template: str, name: str) -> list[pytest.MarkDecorator]:
    if template != ORACLE_ASYNC or name not in HANGS or not find_spec("oracledb"):
        return []
    known = version("oracledb")
    return [pytest.mark.skipif(int(known.partition(".")[0]) < 4, reason=f"python-oracledb {known} never returns")]


@contextmanager
def away(template: str, port: Port) -> Iterator[URL]:
    with port() as number:
        yield url_of(template, number)


@pytest.mark.parametrize(("template", "port"), cases(*DRIVERS))
def test_a_server_that_cannot_be_reached_is_an_outage(template: str, port: Port) -> None:
    with away(template, port) as url:
        assert taken_for(adapter_of(url), failing_to_connect(url)) == "outage"


@pytest.mark.parametrize("template", [ODBC])
def test_a_wrong_password_is_not_an_outage(template: str) -> None:
    with away(template, refusing(18456)) as url:
        assert taken_for(adapter_of(url), failing_to_connect(url)) == "neither"


@pytest.mark.parametrize(("template", "port"), cases(*DRIVERS))
def test_a_worker_waits_for_the_server(template: str, port: Port) -> None:
    with away(template, port) as url, any_sessions_at(url) as sessions:
        worker = Worker(sessions, poll=timedelta(seconds=0.3), notify=False)
        worker.handler(Task)(lambda task: None)
        with Running(worker) as running:
            eventually(lambda: worker._reports.counts["database_errors"] > 1)
            assert not running.ended


@pytest.mark.parametrize(("template", "port"), cases(ODBC, ORACLE))
def test_an_outage_does_not_count_as_an_attempt(template: str, port: Port, task: Task) -> None:
    """The outage happens in the handler of a task."""
    with away(template, port) as url, sessions_at(url) as sessions:
        handler = handler_with(sessions, lambda session, task: session.execute(select(1)))
        executor = Executor(handler, SyncDatabase(sessions, Liveness()), Reports())
        outcome = executor.perform(Job(handler, task))
    assert outcome is not None
    assert outcome.kind == "snoozed"


@pytest.mark.parametrize(("template", "port"), cases(ODBC, ORACLE))
def test_outcomes_are_kept_during_an_outage(template: str, port: Port, task: Task) -> None:
    """The outage begins after the handler has ended."""
    with away(template, port) as url, sessions_at(url) as sessions:
        assert not is_dropped(sessions, task)


def test_a_worker_can_be_stopped_while_it_waits_for_an_answer() -> None:
    """The listener never responds, and python-oracledb waits forever."""
    with away(ORACLE, partial(listener, stay_silent(120))) as url, sessions_at(url) as sessions:
        worker = Worker(sessions, poll=timedelta(seconds=0.3), notify=False)
        worker.handler(Task)(lambda session, task: None)
        with Running(worker):
            time.sleep(0.5)
