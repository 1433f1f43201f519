"""The growth benchmark, on every engine, at minimal size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, column, event, func, inspect, select, table

from bench.growth import HeldSnapshot, measure_growth, measure_held_snapshot
from bench.servertime import ServerTime, read_server_time
from sqlqueue.evaluation.support import connect, sessions
from tests.support.engines import ACCOUNT
from tests.support.harness import Database

SIZE = 300
NAP = 0.02
NAPS = {"postgresql": f"SELECT pg_sleep({NAP})", "mysql": f"SELECT sleep({NAP})", "mariadb": f"SELECT sleep({NAP})"}
"""An expression that makes the server sleep, on engines that report the time, at least to administrators."""


@pytest.fixture
def engine(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr("bench.growth.CHUNK", 70)
    found = connect(sync_db.url)
    yield found
    found.dispose()


def statuses(engine: Engine, name: str) -> Counter[str]:
    queue = table(name, column("status"))
    with engine.connect() as connection:
        counted = connection.execute(select(queue.c.status, func.count()).group_by(queue.c.status))
        return Counter({row.status: row[1] for row in counted})


def test_drains_run_among_the_stated_number_of_rows(engine: Engine) -> None:
    found: list[Counter[str]] = []

    def say(text: str) -> None:
        if text.startswith(f"draining among {SIZE}"):
            found.append(statuses(engine, f"sqlqueue_bench_growth_{SIZE}"))

    empty, grown = measure_growth(engine, sessions(engine), sizes=[0, SIZE], tasks=100, rounds=2, say=say)
    assert found == [Counter(completed=SIZE + 100 * rounds, scheduled=SIZE) for rounds in range(3)]
    assert (empty.rows, grown.rows) == (0, SIZE)
    assert (empty.ratio.least, empty.ratio.most) == (1, 1)
    assert 0 < grown.rate.least <= grown.rate.median <= grown.rate.most
    assert not inspect(engine).has_table(f"sqlqueue_bench_growth_{SIZE}")


def test_a_snapshot_is_held_while_it_drains(engine: Engine) -> None:
    held: list[Any] = []

    def say(text: str) -> None:
        if text.startswith("draining"):
            held.append(engine.pool.checkedout())  # type: ignore[attr-defined]

    found = measure_held_snapshot(engine, sessions(engine), tasks=200, say=say)
    assert held == [1]
    assert len(found.rates) == 10
    assert found.ratio == pytest.approx(found.rates[-1] / found.rates[0], abs=0.01)
    assert not inspect(engine).has_table("sqlqueue_bench_snapshot")
    assert (found.server is None) == (read_server_time(engine) is None)


@pytest.fixture
def telling(sync_db: Database) -> Iterator[Engine]:
    """An engine whose server reports durations, with used connections in its pool."""
    if sync_db.case.name not in NAPS:
        pytest.skip(f"there is nothing to ask on {sync_db.case.name}")
    administrator = sync_db.case.administrator
    engine = connect(sync_db.url if administrator == ACCOUNT else sync_db.url.set(username=administrator))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(engine.connect())
    yield engine
    engine.dispose()


def drained(engine: Engine, *, napping: bool) -> HeldSnapshot:
    """Drain while the server, or the client, sleeps before each statement."""

    def nap(connection: Connection, _: object, statement: str, *__: object) -> None:
        if "sqlqueue_bench_snapshot" not in statement:
            return
        if napping:
            cursor = connection.connection.cursor()
            cursor.execute(NAPS[engine.dialect.name])
            cursor.close()
        else:
            time.sleep(NAP)

    def say(text: str) -> None:
        if text.startswith("draining"):
            event.listen(engine, "before_cursor_execute", nap)

    return measure_held_snapshot(engine, sessions(engine), tasks=200, say=say)


@pytest.mark.parametrize("napping", [True, False])
def test_the_servers_time_is_reported_instead_of_the_clients(telling: Engine, napping: bool) -> None:
    found = drained(telling, napping=napping)
    naps = 2 * NAP * 1e6 / 20
    assert found.server is not None
    assert len(found.server.microseconds) == len(found.rates) == 10
    assert max(found.rates) <= 1e6 / naps
    if napping:
        assert min(found.server.microseconds) >= naps
    else:
        assert 0 < min(found.server.microseconds) < naps  # other rounds may have waited for a processor


def test_the_ratios_are_of_the_last_tenth() -> None:
    found = ServerTime.of([1000, 1400, 1600, 2200], tasks=2)
    assert found == ServerTime(microseconds=(200, 100, 300), ratio=1.5, ratio_to_least=3)


@pytest.mark.parametrize("readings", [[None, None, None], [1, None, 3], [0, 0, 0], [5, 7, 6]])
def test_incomplete_server_times_are_not_reported(readings: list[float | None]) -> None:
    assert ServerTime.of(readings, tasks=1) is None
