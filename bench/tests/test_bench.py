"""The benchmark measures on every engine."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sqlalchemy import inspect, make_url

from bench.baselines import BASELINES
from bench.models import KeyKind
from bench.plan import Plan
from bench.processes import process_pool
from bench.tests.command import bench, reported
from bench.workloads import MakeWorkload, Workload
from sqlqueue.evaluation.support import EvaluationError
from tests.support.harness import Database

SIZE = ("--jobs", 20, "--rounds", 1, "--processes", 1, "--threads", 2)


@pytest.mark.timeout(400)  # the whole benchmark, if a small one
def test_the_benchmark_runs_on_every_engine(sync_db: Database) -> None:
    report = reported(sync_db.url, "--only", "enqueue,drain", *SIZE, "--batch", 10)
    assert report["machine"]["sqlalchemy"].startswith("2.")
    assert report.keys() == {"machine", "wanted", "baseline", "enqueue", "drain"}
    ours = [figure for section in ("enqueue", "drain") for figure in report[section] if figure["kind"] == "sqlqueue"]
    assert len(ours) >= 10
    assert {"worker, coroutine handler(job)", "worker, @worker.task"} <= {figure["name"] for figure in ours}
    for figure in ours:
        assert figure["jobs_per_second"]["median"] > 0
        assert figure["commits_per_job"] > 0
        assert ("driver" in figure["ratios"]) == (report["baseline"] is not None)
    assert not [name for name in inspect(sync_db.engine).get_table_names() if name.startswith("sqlqueue_bench_")]


def test_drains_are_restricted_to_one_kind_of_work(url: str) -> None:
    drains = reported(url, "--only", "drain", "--work", "inserting a row, two", *SIZE)["drain"]
    assert {figure["form"] for figure in drains} == {"inserting a row, two commits, 2 threads"}
    unknown = bench(url, "--only", "drain", "--work", "unheard of", *SIZE)
    assert unknown.exit_code == 2
    assert "no kind of work has a name that contains 'unheard of'" in " ".join(unknown.stderr.split())


@pytest.mark.requires("notifies")
def test_pickup_is_compared_with_handwritten_listeners(sync_db: Database) -> None:
    listening, looking = reported(sync_db.url, "--only", "pickup", "--tasks", 20, "--idle", 1)["pickup"]
    assert (listening["by_hand"]["count"], listening["enqueued"]["count"]) == (20, 20)
    assert looking["by_hand"] is None


def test_without_a_baseline_there_are_no_ratios(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BASELINES, "pysqlite")
    result = bench(url, "--only", "enqueue", "--jobs", 5, "--rounds", 2)
    assert result.exit_code == 0, result.stderr
    assert "no hand-written baseline for this driver" in result.stdout
    assert "enqueue(job)" in result.stdout
    assert "by hand " not in result.stdout


GROWTH = ("--only", "growth", "--sizes", "0,50", "--rounds", 1, "--jobs", 300)
TELLING = ("postgresql", "mariadb")
"""Engines whose server reports the duration of statements to any account. MySQL reports it to some accounts."""


@pytest.fixture(autouse=True)
def _few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.run._AMID", 100)


def test_growth_is_measured_on_request(sync_db: Database) -> None:
    growth = reported(sync_db.url, *GROWTH)["growth"]
    assert [each["rows"] for each in growth["amid"]] == [0, 50]
    for each in growth["amid"]:
        assert each["server_microseconds"] is None or 0 < each["server_microseconds"] < 1e6 / each["rate"]["least"]
        if sync_db.case.name != "mysql":
            assert (each["server_microseconds"] is not None) == (sync_db.case.name in TELLING)
    held = growth["under_snapshot"]
    assert len(held["rates"]) == 10
    if sync_db.case.name != "mysql":
        assert (held["server"] is not None) == (sync_db.case.name in TELLING)
    if held["server"] is not None:
        first, *_, last = each = held["server"]["microseconds"]
        assert len(each) == 10
        assert 0 < min(each) < 1e6 / min(held["rates"])
        assert held["server"]["ratio"] == pytest.approx(last / first, rel=0.01)
        assert held["server"]["ratio_to_least"] == pytest.approx(last / min(each), rel=0.01)


def test_growth_is_measured_with_a_single_job(url: str) -> None:
    growth = reported(url, "--only", "growth", "--sizes", 0, "--rounds", 1, "--jobs", 1)["growth"]
    assert min(growth["under_snapshot"]["rates"]) > 0


def test_growth_is_shown_as_text(sync_db: Database) -> None:
    result = bench(sync_db.url, *GROWTH)
    assert result.exit_code == 0, result.stderr
    told = "The server itself spent" in result.stdout
    assert told != ("server does not report how long it spends" in result.stdout)
    if sync_db.case.name != "mysql":
        assert told == (sync_db.case.name in TELLING)


BESIDE = ("fair", "limits, full", "rates, used up", "in order, the first one running")
"""The queues that are measured beside a large and a small backlog of one key."""


@pytest.mark.one_engine
def test_keys_are_measured_on_request(url: str) -> None:
    keyed = ("--only", "keyed", "--sizes", 1_100, "--rounds", 1)
    plain, single, *others = reported(url, *keyed)["keyed"]
    assert (plain["ratio"]["median"], single["against"]) == (1, "plain")
    assert [each["against"] for each in others].count("plain") == 3
    pairs = Counter(each["against"] for each in others if each["against"] != "plain")
    assert {name.partition(":")[0]: number for name, number in pairs.items()} == dict.fromkeys(BESIDE, 2)
    assert min(each["rate"]["least"] for each in (plain, single, *others)) > 0


def no_hand(*_: object) -> Workload:
    raise ValueError("no workload")


def dying(*_: object) -> Workload:
    os._exit(1)


class Stumbling:
    def __init__(self, *_: object) -> None:
        pass

    def begin(self, jobs: int) -> None:
        pass

    def check(self) -> None:
        raise ValueError("stumbled")

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [(no_hand, "ValueError: no workload"), (dying, "a process has died"), (Stumbling, "ValueError: stumbled")],
)
def test_an_error_in_a_process_ends_the_benchmark(url: str, make: MakeWorkload, reason: str) -> None:
    plan = Plan(url=make_url(url), key=KeyKind.INT, payload=1, jobs=1, rounds=1, processes=(1,), threads=1, batch=2)
    with (
        pytest.raises(EvaluationError, match=reason),
        process_pool(plan) as pool,
        pool.prepared(make, 1) as work,
    ):
        work(1, lambda: False)
