"""The hand-written code with which the library is compared does the same work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, select, update

from bench.baselines import BASELINES
from bench.clients import Client, Clients, by_driver, by_library, by_orm
from bench.contest import Contest
from bench.counter import StatementCounter
from bench.figures import ContenderKind, Entry, Round
from bench.models import KeyKind, Note
from bench.plan import Plan
from bench.processes import ProcessPool
from bench.workloads import (
    Cycle,
    Draining,
    apart,
    apart_writing,
    at_most_once,
    by_copy,
    in_bulk,
    one_by_one,
    together,
    together_writing,
)
from sqlqueue import Status, utcnow
from sqlqueue.evaluation.support import EvaluationError
from tests.support.harness import Database

LEASE = timedelta(minutes=5)
SOON = timedelta(seconds=30)


def plan_for(db: Database, key: KeyKind = KeyKind.INT) -> Plan:
    return Plan(url=db.url, key=key, payload=10, jobs=0, rounds=1, processes=(1,), threads=2, batch=7)


@pytest.fixture
def compared(engine: Engine) -> list[tuple[str, Clients]]:
    """The hand-written clients with which the library is compared on this engine."""
    if engine.driver not in BASELINES:
        pytest.skip(f"there is no baseline for {engine.driver}")
    orm = [("orm", by_orm)] if BASELINES[engine.driver].skips_locked else []
    return [("driver", by_driver), *orm]


@pytest.mark.parametrize(
    ("cycle", "key"),
    [
        (apart, KeyKind.UUID),
        (together, KeyKind.INT),
        (at_most_once, KeyKind.UUID),
        (apart_writing, KeyKind.INT),
        (together_writing, KeyKind.UUID),
    ],
)
def test_baselines_do_each_job_once(
    sync_db: Database, engine: Engine, compared: list[tuple[str, Clients]], cycle: Cycle, key: KeyKind
) -> None:
    plan = plan_for(sync_db, key)
    contest = Contest(plan, engine, ProcessPool([]), lambda _: None)
    for (_, clients), in_batches in ((each, batches) for each in compared for batches in (True, False)):
        contest.renew()
        contest.fill(20)
        loops = Draining(plan, StatementCounter(), clients=clients, cycle=cycle, in_batches=in_batches, threads=2)
        loops.begin(20)
        loops.end()
        loops.close()
        contest.took(20)  # raises unless each was done exactly once
        with engine.begin() as connection:
            written = connection.execute(delete(Note)).rowcount
        if not in_batches:
            assert written == (20 if cycle in (apart_writing, together_writing) else 0)


@pytest.mark.parametrize("key", KeyKind)
def test_baselines_write_what_the_library_writes(
    sync_db: Database, engine: Engine, compared: list[tuple[str, Clients]], key: KeyKind
) -> None:
    plan = plan_for(sync_db, key)
    expected = history(plan, engine, by_library)
    assert [row["status"] for row in expected] == ["available", "running", "completed", "completed"]
    for name, clients in compared:
        assert history(plan, engine, clients) == expected, name


def history(plan: Plan, engine: Engine, clients: Clients) -> list[dict[str, Any]]:
    """Return a row that was inserted, claimed and completed, and one that was consumed, with times simplified."""
    with clients(plan, StatementCounter(), 1) as (client,):
        contest = Contest(plan, engine, ProcessPool([]), lambda _: None)
        contest.renew()
        client.add("x")
        client.commit()
        rows = [only_row(plan, engine)]
        claimed = client.claim(2)
        client.commit()
        rows.append(only_row(plan, engine))
        client.complete(claimed)
        client.commit()
        rows.append(only_row(plan, engine))
        contest.fill(1)
        client.consume(2)
        client.commit()
        rows.append(only_row(plan, engine) | {"payload": "x"})
    return rows


def only_row(plan: Plan, engine: Engine) -> dict[str, Any]:
    with engine.connect() as connection:
        now = connection.execute(select(utcnow())).scalar_one()
        (row,) = connection.execute(select(plan.model.__table__)).mappings()
    moments = {"available_at", "claimed_at", "finished_at", "created_at"}
    return {
        name: offset(value - now) if name in moments and value is not None else value
        for name, value in row.items()
        if name not in ("id", "claimed_by", "claim_token")
    } | {"is_claimed_by_somebody": row["claimed_by"] is not None, "has_token": row["claim_token"] != 0}


def offset(difference: timedelta) -> str:
    return next((str(each) for each in (timedelta(0), LEASE) if abs(difference - each) < SOON), str(difference))


@pytest.mark.parametrize("enqueue", [one_by_one, in_bulk, by_copy])
@pytest.mark.parametrize("key", KeyKind)
def test_baselines_enqueue_what_the_library_claims(
    sync_db: Database,
    engine: Engine,
    compared: list[tuple[str, Clients]],
    enqueue: Callable[[Client, list[str]], None],
    key: KeyKind,
) -> None:
    plan = plan_for(sync_db, key)
    for _, clients in compared:
        if enqueue is by_copy and (clients is not by_driver or not sync_db.case.copies):
            continue
        Contest(plan, engine, ProcessPool([]), lambda _: None).renew()
        with clients(plan, StatementCounter(), 1) as (client,), by_library(plan, StatementCounter(), 1) as (library,):
            enqueue(client, ["a", "b", "c"])
            assert sorted(job.payload for job in library.claim(10)) == ["a", "b", "c"]


def test_a_baseline_notices_that_its_claim_is_lost(sync_db: Database, engine: Engine) -> None:
    if engine.driver not in BASELINES:
        pytest.skip(f"there is no baseline for {engine.driver}")
    plan = plan_for(sync_db)
    contest = Contest(plan, engine, ProcessPool([]), lambda _: None)
    for claims in (1, 2):
        contest.fill(claims)
        with by_driver(plan, StatementCounter(), 1) as (client,):
            claimed = client.claim(claims)
            client.commit()
            with engine.begin() as connection:
                connection.execute(update(plan.model).values(attempt=2))
            with pytest.raises(RuntimeError, match=f"{claims} claims are lost"):
                client.complete(claimed)


@pytest.mark.parametrize("change", [{"status": Status.AVAILABLE.value}, {"attempt": 2}])
def test_a_job_that_is_not_done_exactly_once_ends_the_benchmark(tmp_path: Path, change: dict[str, Any]) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/bench.db")
    plan = Plan(url=engine.url, key=KeyKind.INT, payload=1, jobs=2, rounds=1, processes=(1,), threads=1, batch=2)
    contest = Contest(plan, engine, ProcessPool([]), lambda _: None)
    contest.renew()
    contest.fill(2)
    with by_library(plan, StatementCounter(), 1) as (client,):
        apart(client, 2)
    contest.took(2)
    with engine.begin() as connection:
        connection.execute(update(plan.model).where(plan.model.id == 1).values(change))
    with pytest.raises(EvaluationError, match="1 of 2 jobs were done exactly once"):
        contest.took(2)
    engine.dispose()


def test_a_ratio_is_of_one_round_and_of_the_same_work() -> None:
    def entry(form: str, processes: int, kind: ContenderKind, *rates: float) -> Entry:
        rounds = [
            Round(jobs=1, seconds=1, jobs_per_second=rate, cpu_ms_per_1000=1, statements_per_job=1, commits_per_job=1)
            for rate in rates
        ]
        return Entry(form=form, name="", kind=kind, processes=processes, rounds=rounds)

    mine = entry("a", 1, "sqlqueue", 50, 10, 30)
    others = [entry("a", 1, "driver", 100, 10, 40), entry("a", 2, "driver", 1, 1, 1), entry("b", 1, "orm", 1, 1, 1)]
    ratios = mine.figure([mine, *others]).ratios
    assert {kind: (ratio.median, ratio.least, ratio.most) for kind, ratio in ratios.items()} == {
        "driver": (0.75, 0.5, 1.0)
    }
