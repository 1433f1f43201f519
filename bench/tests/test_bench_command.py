"""`python -m bench`: invalid arguments, existing tables, interrupts."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, NullPool, column, create_engine, func, inspect, select, table
from sqlalchemy.exc import OperationalError

from bench.baselines import raw_connection
from bench.tests.command import bench, reported
from sqlqueue.evaluation import support
from sqlqueue.evaluation.support import connect

SIZE = ("--jobs", 2, "--rounds", 1, "--processes", 1, "--threads", 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "drain,dance"], "--only names 'dance'"),
        (["--processes", "1,x"], "give numbers separated by commas"),
        (["--processes", "0"], "each at least 1"),
        (["--processes", "2,2"], "distinct numbers"),
        (["--sizes", "0,-1"], "each at least 0"),
        (["--key", "text"], "'text' is not one of"),
        (["--url", "sqlite://"], "an in-memory database"),
        (["--url", "sqlite+aiosqlite:///x.db"], "an asyncio driver"),
        (["--url", "sqlite:////no/such/folder/x.db"], "unable to open database file"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_line(url: str, arguments: list[str], reason: str) -> None:
    result = bench(url, *arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.replace("│", " ").split())


def test_an_existing_table_is_left_alone(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE sqlqueue_bench_job (id INTEGER)")
    result = bench(url, "--only", "enqueue")
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
def test_an_interrupt_leaves_no_table_behind(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    command = [sys.executable, "-m", "bench", "--url", url, "--only", "drain"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    deadline = time.monotonic() + 60
    while not are_done(engine):  # processes are working
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(program.pid, signal.SIGINT)  # like a terminal, to the whole process group
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130, errors
    # Python 3.13 cannot release a message that is being written to a process, and says so
    ignored = "(Exception ignored in: <_io.BytesIO object at 0x[0-9a-f]+>\nBufferError: [^\n]+\n)?"
    assert re.fullmatch(rf"Stopped\. The tables are dropped\.\n{ignored}", errors)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_sqlite_keeps_the_journal_of_the_url(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "bench.db"
    reported(f"sqlite:///file:{file}?uri=true&journal_mode={mode}", "--only", "enqueue,drain", *SIZE)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)


@pytest.mark.parametrize(("parameter", "level"), [("", 1), ("&synchronous=full", 2)])
def test_commits_to_a_log_wait_for_the_disk_if_the_url_says_so(tmp_path: Path, parameter: str, level: int) -> None:
    engine = connect(f"sqlite:///file:{tmp_path / 'bench.db'}?uri=true{parameter}")
    with engine.connect() as connection, closing(raw_connection(engine)) as by_hand:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == level
        assert by_hand.execute("PRAGMA synchronous").fetchone() == (level,)
    engine.dispose()


def test_progress_is_shown_without_a_terminal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (url, "--only", "enqueue", *SIZE)
    assert bench(*arguments).stderr == ""
    monkeypatch.setattr(support, "SILENCE", 0)
    said = bench(*arguments).stderr.splitlines()
    assert said[0] == "enqueue: round 1 of 1, 1 process(es), one by one, a commit each: pysqlite by hand"


def test_the_environments_directory_is_part_of_the_report(url: str) -> None:
    report = reported(url, "--only", "enqueue", *SIZE, "--environments", "/some/where")
    assert report["wanted"]["environments"] == "/some/where"
