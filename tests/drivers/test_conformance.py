"""The conformance suite with each driver."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession
from sqlqueue.testing import conformance
from sqlqueue.testing.conformance import Base, Suite, TestClaims, TestEngine, TestKeys, TestSettling
from tests.drivers.any_driver import Function, engine_with, on_a_loop, on_other_drivers
from tests.support import tables
from tests.support.harness import Database, execute_on_connect

pytestmark = on_other_drivers


class Threads(ThreadPoolExecutor):
    """Threads that run their functions on event loops."""

    def submit(self, function: Function, /, *arguments: Any, **options: Any) -> Future[Any]:
        return super().submit(on_a_loop(function), *arguments, **options)


@pytest.fixture(scope="module")
def engines_with_tables() -> Iterator[set[Engine]]:
    """The engines whose databases have the suite's tables, which are kept between its tests."""
    engines: set[Engine] = set()
    yield engines
    for engine in engines:
        Base.metadata.drop_all(engine)


class OnLoops:
    @pytest.fixture
    def sessions(
        self,
        sync_db: Database,
        engines_with_tables: set[Engine],
        conformance_engine: Engine,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[sessionmaker[QueueSession]]:
        monkeypatch.setattr(conformance, "ThreadPoolExecutor", Threads)
        if sync_db.engine not in engines_with_tables:
            tables.make(sync_db.engine, Base.metadata)
            engines_with_tables.add(sync_db.engine)
        yield sessionmaker(conformance_engine, class_=QueueSession)
        tables.empty(sync_db.engine, sync_db.case, Base.metadata)


def with_any_driver(suite: type[Suite]) -> type[Suite]:
    tests = {name: on_a_loop(test) for name, test in vars(suite).items() if name.startswith("test_")}
    return type(suite.__name__, (OnLoops, suite), tests)


TestClaims, TestEngine, TestKeys, TestSettling = map(  # type: ignore[misc]
    with_any_driver, (TestClaims, TestEngine, TestKeys, TestSettling)
)


@pytest.fixture
def conformance_engine(sync_db: Database, driver: str) -> Iterator[Engine]:
    case = sync_db.case
    settings = [case.foreign_keys_sql, case.impatient_sql if case.one_writer else None]
    with engine_with(driver, sync_db) as made:
        event.listen(made, "connect", functools.partial(execute_on_connect, [each for each in settings if each]))
        yield made
