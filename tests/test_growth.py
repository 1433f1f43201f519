"""The benchmark of queues that have grown, on every engine, as small as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, column, func, inspect, select, table

from sqlqueue.bench.growth import measure_growth, measure_held_snapshot
from sqlqueue.demo.database import connect, sessions
from tests.harness import Database

pytestmark = pytest.mark.once

SIZE = 300


@pytest.fixture
def engine(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr("sqlqueue.bench.growth._CHUNK", 70)
    found = connect(sync_db.url)
    yield found
    found.dispose()


def statuses(engine: Engine, name: str) -> Counter[str]:
    queue = table(name, column("status"))
    with engine.connect() as connection:
        counted = connection.execute(select(queue.c.status, func.count()).group_by(queue.c.status))
        return Counter({row.status: row[1] for row in counted})


def test_drains_amid_what_is_said_to_be_there(engine: Engine) -> None:
    found: list[Counter[str]] = []

    def say(text: str) -> None:
        if text.startswith(f"draining amid {SIZE}"):
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
