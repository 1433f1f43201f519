"""The benchmark: that it measures on every engine, and that what the library is compared with does the same work."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import Engine, NullPool, column, create_engine, delete, func, inspect, make_url, select, table, update
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from sqlqueue import Status
from sqlqueue.bench.clients import Client, Clients, by_driver, by_library, by_orm
from sqlqueue.bench.contest import Contest
from sqlqueue.bench.crew import Crew, crew
from sqlqueue.bench.figures import Entry, Kind, Round
from sqlqueue.bench.hands import (
    Cycle,
    Draining,
    Hand,
    MakeHand,
    apart,
    apart_writing,
    at_most_once,
    by_copy,
    in_bulk,
    one_by_one,
    together,
    together_writing,
)
from sqlqueue.bench.models import Base, Key, Note
from sqlqueue.bench.plan import BenchError, Plan
from sqlqueue.bench.tally import Tally
from sqlqueue.bench.yardsticks import YARDSTICKS
from sqlqueue.cli import application
from sqlqueue.sql.clock import utcnow
from tests.support.harness import Database
from tests.support.processes import PROGRAM

LEASE = timedelta(minutes=5)
SOON = timedelta(seconds=30)


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(application(), ["bench", *map(str, arguments)])


def url_of(db: Database) -> str:
    return db.url.render_as_string(hide_password=False)


def plan_for(db: Database, key: Key = Key.INT) -> Plan:
    return Plan(url=db.url, key=key, payload=10, jobs=0, rounds=1, processes=(1,), threads=2, batch=7)


@pytest.fixture
def engine(sync_db: Database) -> Iterator[Engine]:
    """With the benchmark's tables."""
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.engine
    Base.metadata.drop_all(sync_db.engine)


@pytest.fixture
def compared(engine: Engine) -> list[tuple[str, Clients]]:
    """What the library is compared with here."""
    if engine.driver not in YARDSTICKS:
        pytest.skip(f"there is no yardstick for {engine.driver}")
    orm = [("orm", by_orm)] if YARDSTICKS[engine.driver].skips_locked else []
    return [("driver", by_driver), *orm]


# -- a run ------------------------------------------------------------------------------------------------------------


def test_it_measures_on_every_engine(sync_db: Database) -> None:
    result = bench(
        *("--url", url_of(sync_db), "--only", "enqueue,drain", "--json"),
        *("--jobs", 20, "--rounds", 1, "--processes", 1, "--threads", 2, "--batch", 10),
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["machine"]["sqlalchemy"].startswith("2.")
    assert report.keys() == {"machine", "wanted", "yardstick", "enqueue", "drain"}
    ours = [figure for section in ("enqueue", "drain") for figure in report[section] if figure["kind"] == "sqlqueue"]
    assert len(ours) >= 10
    assert {"worker, coroutine handler(job)", "worker, @worker.task"} <= {figure["who"] for figure in ours}
    for figure in ours:
        assert figure["jobs_per_second"]["median"] > 0
        assert figure["commits_per_job"] > 0
        assert ("driver" in figure["ratios"]) == (report["yardstick"] is not None)
    assert not [name for name in inspect(sync_db.engine).get_table_names() if name.startswith("sqlqueue_bench_")]


@pytest.mark.requires("notifies")
def test_pickup_is_compared_with_handwritten_listeners(sync_db: Database) -> None:
    result = bench("--url", url_of(sync_db), "--only", "pickup", "--tasks", 20, "--idle", 1, "--json")
    assert result.exit_code == 0, result.stderr
    listening, looking = json.loads(result.stdout)["pickup"]
    assert (listening["by_hand"]["count"], listening["enqueued"]["count"]) == (20, 20)
    assert looking["by_hand"] is None


def test_no_yardstick_no_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(YARDSTICKS, "pysqlite")
    result = bench("--url", f"sqlite:///{tmp_path}/bench.db", "--only", "enqueue", "--jobs", 5, "--rounds", 2)
    assert result.exit_code == 0, result.stderr
    assert "no yardstick for this driver" in result.stdout
    assert "enqueue(job)" in result.stdout
    assert "by hand " not in result.stdout


GROWTH = ("--only", "growth", "--sizes", "0,50", "--rounds", 1, "--jobs", 1_000)
TELLING = ("postgresql", "mariadb")
"""Whose server tells any account how long it took.  MySQL's tells some."""


def test_growth_is_measured_when_it_is_asked_for(sync_db: Database) -> None:
    result = bench("--url", url_of(sync_db), *GROWTH, "--json")
    assert result.exit_code == 0, result.stderr
    growth = json.loads(result.stdout)["growth"]
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


def test_growth_of_a_single_job(tmp_path: Path) -> None:
    options = ("--only", "growth", "--sizes", 0, "--rounds", 1, "--jobs", 1, "--json")
    result = bench("--url", f"sqlite:///{tmp_path}/bench.db", *options)
    assert result.exit_code == 0, result.stderr
    assert min(json.loads(result.stdout)["growth"]["under_snapshot"]["rates"]) > 0


def test_growth_is_shown_as_text(sync_db: Database) -> None:
    result = bench("--url", url_of(sync_db), *GROWTH)
    assert result.exit_code == 0, result.stderr
    told, untold = (
        "The server itself took" in result.stdout,
        "server does not report its own working time" in result.stdout,
    )
    assert told != untold
    if sync_db.case.name != "mysql":
        assert told == (sync_db.case.name in TELLING)


def no_hand(*_: object) -> Hand:
    raise ValueError("no hand")


def dying(*_: object) -> Hand:
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
    [(no_hand, "ValueError: no hand"), (dying, "a process has died"), (Stumbling, "ValueError: stumbled")],
)
def test_an_error_in_a_process_ends_the_benchmark(tmp_path: Path, make: MakeHand, reason: str) -> None:
    url = make_url(f"sqlite:///{tmp_path}/bench.db")
    plan = Plan(url=url, key=Key.INT, payload=1, jobs=1, rounds=1, processes=(1,), threads=1, batch=2)
    with pytest.raises(BenchError, match=reason), crew(plan) as processes, processes.employed(make, 1) as work:
        work(1, lambda: False)


# -- what it is compared with -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", Key)
@pytest.mark.parametrize("cycle", [apart, together, at_most_once, apart_writing, together_writing])
def test_yardsticks_do_each_job_once(
    sync_db: Database, engine: Engine, compared: list[tuple[str, Clients]], cycle: Cycle, key: Key
) -> None:
    plan = plan_for(sync_db, key)
    contest = Contest(plan, engine, Crew([]), lambda _: None)
    for (_, clients), in_batches in ((each, batches) for each in compared for batches in (True, False)):
        contest.renew()
        contest.fill(20)
        loops = Draining(plan, Tally(), clients=clients, cycle=cycle, in_batches=in_batches, threads=2)
        loops.begin(20)
        loops.end()
        loops.close()
        contest.took(20)  # raises unless each was done exactly once
        with engine.begin() as connection:
            written = connection.execute(delete(Note)).rowcount
        if not in_batches:
            assert written == (20 if cycle in (apart_writing, together_writing) else 0)


@pytest.mark.parametrize("key", Key)
def test_yardsticks_write_what_the_library_writes(
    sync_db: Database, engine: Engine, compared: list[tuple[str, Clients]], key: Key
) -> None:
    plan = plan_for(sync_db, key)
    expected = history(plan, engine, by_library)
    assert [row["status"] for row in expected] == ["available", "running", "completed", "completed"]
    for name, clients in compared:
        assert history(plan, engine, clients) == expected, name


def history(plan: Plan, engine: Engine, clients: Clients) -> list[dict[str, Any]]:
    """A row that is inserted, claimed and completed, and one that is consumed; moments as far as they are known."""
    with clients(plan, Tally(), 1) as (client,):
        contest = Contest(plan, engine, Crew([]), lambda _: None)
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
@pytest.mark.parametrize("key", Key)
def test_yardsticks_enqueue_what_the_library_claims(
    sync_db: Database,
    engine: Engine,
    compared: list[tuple[str, Clients]],
    enqueue: Callable[[Client, list[str]], None],
    key: Key,
) -> None:
    plan = plan_for(sync_db, key)
    for _, clients in compared:
        if enqueue is by_copy and (clients is not by_driver or not sync_db.case.copies):
            continue
        Contest(plan, engine, Crew([]), lambda _: None).renew()
        with clients(plan, Tally(), 1) as (client,), by_library(plan, Tally(), 1) as (library,):
            enqueue(client, ["a", "b", "c"])
            assert sorted(job.payload for job in library.claim(10)) == ["a", "b", "c"]


def test_a_yardstick_notices_that_its_claim_is_lost(sync_db: Database, engine: Engine) -> None:
    if engine.driver not in YARDSTICKS:
        pytest.skip(f"there is no yardstick for {engine.driver}")
    plan = plan_for(sync_db)
    contest = Contest(plan, engine, Crew([]), lambda _: None)
    for claims in (1, 2):
        contest.fill(claims)
        with by_driver(plan, Tally(), 1) as (client,):
            claimed = client.claim(claims)
            client.commit()
            with engine.begin() as connection:
                connection.execute(update(plan.model).values(attempt=2))
            with pytest.raises(RuntimeError, match=f"{claims} claims are lost"):
                client.complete(claimed)


@pytest.mark.parametrize("change", [{"status": Status.AVAILABLE.value}, {"attempt": 2}])
def test_a_job_that_is_not_done_exactly_once_ends_the_benchmark(tmp_path: Path, change: dict[str, Any]) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/bench.db")
    plan = Plan(url=engine.url, key=Key.INT, payload=1, jobs=2, rounds=1, processes=(1,), threads=1, batch=2)
    contest = Contest(plan, engine, Crew([]), lambda _: None)
    contest.renew()
    contest.fill(2)
    with by_library(plan, Tally(), 1) as (client,):
        apart(client, 2)
    contest.took(2)
    with engine.begin() as connection:
        connection.execute(update(plan.model).where(plan.model.id == 1).values(change))
    with pytest.raises(BenchError, match="1 of 2 jobs were done exactly once"):
        contest.took(2)
    engine.dispose()


def test_a_ratio_is_of_one_round_and_of_the_same_work() -> None:
    def entry(form: str, processes: int, kind: Kind, *rates: float) -> Entry:
        rounds = [
            Round(jobs=1, seconds=1, jobs_per_second=rate, cpu_ms_per_1000=1, statements_per_job=1, commits_per_job=1)
            for rate in rates
        ]
        return Entry(form=form, who="", kind=kind, processes=processes, rounds=rounds)

    mine = entry("a", 1, "sqlqueue", 50, 10, 30)
    others = [entry("a", 1, "driver", 100, 10, 40), entry("a", 2, "driver", 1, 1, 1), entry("b", 1, "orm", 1, 1, 1)]
    ratios = mine.figure([mine, *others]).ratios
    assert {kind: (ratio.median, ratio.least, ratio.most) for kind, ratio in ratios.items()} == {
        "driver": (0.75, 0.5, 1.0)
    }


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "drain,dance"], "--only names 'dance'"),
        (["--processes", "1,x"], "give numbers with commas"),
        (["--processes", "0"], "each at least 1"),
        (["--processes", "2,2"], "different numbers"),
        (["--sizes", "0,-1"], "each at least 0"),
        (["--key", "text"], "'text' is not one of"),
        (["--url", "sqlite://"], "an in-memory database"),
        (["--url", "sqlite+aiosqlite:///x.db"], "an asyncio driver"),
        (["--url", "sqlite:////no/such/folder/x.db"], "unable to open database file"),
    ],
)
def test_bad_input_is_refused_in_a_line(tmp_path: Path, arguments: list[str], reason: str) -> None:
    result = bench("--url", f"sqlite:///{tmp_path}/bench.db", *arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.replace("│", " ").split())


def test_an_existing_table_is_left_alone(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/bench.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE sqlqueue_bench_job (id INTEGER)")
    result = bench("--url", engine.url, "--only", "enqueue")
    assert result.exit_code == 2
    assert "the table sqlqueue_bench_job already exists" in result.stderr
    assert inspect(engine).get_table_names() == ["sqlqueue_bench_job"]
    engine.dispose()


def are_done(engine: Engine) -> bool:
    jobs = table("sqlqueue_bench_job", column("status"))
    with engine.connect() as connection:
        try:
            return bool(connection.scalar(select(func.count()).where(jobs.c.status == "completed")))
        except OperationalError:  # the table does not exist, or is being recreated
            return False


@pytest.mark.skipif(os.name != "posix", reason="signals a group of processes")
def test_an_interrupt_leaves_no_table_behind(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/bench.db", poolclass=NullPool)
    command = [*PROGRAM, "bench", "--url", str(engine.url), "--only", "drain"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    deadline = time.monotonic() + 60
    while not are_done(engine):  # processes are at work
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does it: all of them at once
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    # of a message to a process that was being written, which Python 3.13 cannot let go of
    ignored = "(Exception ignored in: <_io.BytesIO object at 0x[0-9a-f]+>\nBufferError: [^\n]+\n)?"
    assert re.fullmatch(rf"Stopped\. The tables are dropped\.\n{ignored}", errors)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_sqlite_keeps_the_journal_of_the_url(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "bench.db"
    sizes = ("--jobs", 2, "--rounds", 1, "--processes", 1, "--threads", 2)
    result = bench("--url", f"sqlite:///file:{file}?uri=true&journal_mode={mode}", "--only", "enqueue,drain", *sizes)
    assert result.exit_code == 0, result.stderr
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
