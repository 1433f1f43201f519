"""The comparison with other libraries."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.schema import CreateSchema, DropSchema

from bench.peers.contenders import CONTENDERS, PeerContender, PeerError
from bench.peers.environment import command_of
from bench.peers.figures import Drained, Latency, drained, latency
from bench.peers.measure import PeerPlan, measure_peers
from bench.tests.command import bench
from sqlqueue.evaluation.support import EvaluationError
from tests.support.harness import Database

PLAN = PeerPlan(jobs=50, rounds=1, processes=(1,), threads=2, batch=10, tasks=5)
ON_DEMAND = "SQLQUEUE_TEST_PEERS"


def report(*marks: tuple[int, float], cpu: float = 0.0) -> dict[str, Any]:
    return {"marks": list(marks), "cpu": cpu}


# -- figures ----------------------------------------------------------------------------------------------------------


def test_a_rate_leaves_out_the_first_tenth() -> None:
    begun = report((0, 0.0), *((number, 100 + number / 2) for number in range(1, 10)), cpu=0.02)
    assert drained([begun], 10, is_done=True) == Drained(jobs_per_second=2, cpu_ms_per_1000=2_000)


def test_a_rate_begins_when_all_processes_work() -> None:
    alone = [(number, float(number)) for number in range(10)]
    early = report(*alone, *((10 + number, 10 + number / 2) for number in range(20)))
    late = report(*((30 + number, 10.25 + number / 2) for number in range(20)))
    assert drained([early, late, report()], 50, is_done=True).jobs_per_second == pytest.approx(4)


@pytest.mark.parametrize(
    ("numbers", "is_done", "reason"),
    [
        ([0, 1, 1, 2], True, "4 calls for 3 of 4 jobs"),
        ([0, 1, 2], True, "3 calls for 3 of 4 jobs"),
        ([0, 1, 1], False, "3 calls for 2 of 4 jobs"),
        ([], False, "0 of 4 jobs were started"),
        ([0], False, "1 of 4 jobs were started"),
    ],
)
def test_a_drain_that_does_not_call_each_handler_once_is_not_reported(
    numbers: list[int], is_done: bool, reason: str
) -> None:
    marks = report(*((number, float(place)) for place, number in enumerate(numbers)))
    with pytest.raises(PeerError, match=reason):
        drained([marks], 4, is_done=is_done)


def test_a_stopped_drain_still_has_a_rate() -> None:
    assert drained([report((0, 0.0), (1, 1.0), (2, 2.0))], 1_000, is_done=False).jobs_per_second == 1


def test_delays_are_of_the_same_job() -> None:
    sent = [(0, 1.0, 1.001), (1, 2.0, 2.002)]
    assert latency(sent, [(1, 2.005), (0, 1.005), (-1, 0.0)]) == Latency(p50=3.5, p99=3.99, from_call_p50=5)


# -- runs -------------------------------------------------------------------------------------------------------------


def named(*names: str) -> list[PeerContender]:
    return [each for each in CONTENDERS if each.name in names]


@pytest.mark.requires("notifies")
def test_contenders_take_turns_and_leave_no_tables(sync_db: Database, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('it does not start')")
    tried = [*named("psycopg by hand", "sqlqueue, function job"), PeerContender(name="broken", script=broken)]
    found = measure_peers(sync_db.engine, PLAN, tmp_path, lambda _: None, tried)
    assert found.missing == {"broken": "it has exited: it does not start"}
    assert [each.name for each in found.figures] == ["psycopg by hand", "sqlqueue, function job"]
    for figure in found.figures:
        assert figure.jobs_per_second[1].median > 0
        assert figure.ratios[1].median == pytest.approx(
            figure.jobs_per_second[1].median / found.figures[0].jobs_per_second[1].median, abs=0.001
        )
        assert figure.enqueue_p50 is not None
        assert figure.pickup is not None
        assert figure.pickup.p99 >= figure.pickup.p50 > 0
        assert figure.pickup.from_call_p50 > figure.pickup.p50
    assert {each.schema for each in tried}.isdisjoint(inspect(sync_db.engine).get_schema_names())


@pytest.mark.requires("notifies")
def test_no_command_line_contains_the_password(sync_db: Database, tmp_path: Path) -> None:
    asked = tmp_path / "asked.py"
    asked.write_text("import os, sys\nraise SystemExit(f'{sys.argv} {os.environ[\"SQLQUEUE_BENCH_URL\"]}')")
    found = measure_peers(sync_db.engine, PLAN, tmp_path, lambda _: None, [PeerContender(name="asked", script=asked)])
    arguments, _, url = found.missing["asked"].rpartition("] ")
    assert sync_db.url.password
    assert sync_db.url.password in url
    assert sync_db.url.password not in arguments


@pytest.mark.requires("notifies")
def test_a_schema_that_exists_is_left_alone(sync_db: Database, tmp_path: Path) -> None:
    tried = named("psycopg by hand")
    with sync_db.engine.begin() as connection:
        connection.execute(CreateSchema(tried[0].schema))
    try:
        with pytest.raises(EvaluationError, match="the schema sqlqueue_bench_by_hand_psycopg already exists"):
            measure_peers(sync_db.engine, PLAN, tmp_path, lambda _: None, tried)
    finally:
        with sync_db.engine.begin() as connection:
            connection.execute(DropSchema(tried[0].schema))


def test_contenders_without_requirements_need_no_environment(tmp_path: Path) -> None:
    for each in CONTENDERS:
        if not each.requirements:
            assert command_of(each, tmp_path) == (sys.executable, str(each.script))
    assert not list(tmp_path.iterdir())


def test_other_engines_are_rejected(url: str) -> None:
    result = bench(url, "--peers")
    assert result.exit_code == 2
    assert "only on PostgreSQL" in result.stderr


@pytest.mark.requires("notifies")
@pytest.mark.skipif(ON_DEMAND not in os.environ, reason=f"installs packages from PyPI: set {ON_DEMAND}=1 to run it")
@pytest.mark.parametrize("name", [each.name for each in CONTENDERS if each.requirements])
def test_other_libraries_are_measured(sync_db: Database, tmp_path: Path, name: str) -> None:
    if name == "oban" and sys.version_info < (3, 12):
        pytest.skip("oban needs Python 3.12")
    if name == "graphile-worker" and shutil.which("npm") is None:
        pytest.skip("graphile-worker needs Node.js")
    found = measure_peers(sync_db.engine, PLAN, tmp_path, lambda _: None, named(name))
    assert found.missing == {}
    (figure,) = found.figures
    assert figure.jobs_per_second[1].median > 0
    assert figure.pickup is not None


@pytest.mark.skipif(ON_DEMAND not in os.environ, reason=f"makes a virtual environment: set {ON_DEMAND}=1 to run it")
def test_a_library_that_cannot_be_installed_is_named_with_the_reason(tmp_path: Path) -> None:
    absent = PeerContender(name="absent", script=tmp_path / "absent.py", requirements=("no such thing",))
    with pytest.raises(PeerError, match="not installable: ERROR: Invalid requirement"):
        command_of(absent, tmp_path)
