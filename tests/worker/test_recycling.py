"""Worker processes that have run many tasks, or have grown, are replaced without effect on tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import sessionmaker

from sqlqueue import Worker
from sqlqueue._support.processes import MIB
from sqlqueue.worker import supervisor
from sqlqueue.worker.run import UNLIMITED, ProcessLimits
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.plugin import sync_on_one_engine
from tests.support.workers import all_are, eventually
from tests.worker.crashing import GROWING, stopped, supervised

PATIENCE = 120
STARTING = """
import time
print("starting", flush=True)
time.sleep(60)
"""


@sync_on_one_engine
@pytest.mark.parametrize(
    ("arguments", "name", "said"),
    [
        (("--max-tasks", "5"), "innocent", " has run "),
        (("--max-memory", "400"), f"{GROWING}:{100 * MIB}", " occupies "),
    ],
)
def test_a_process_at_its_limit_is_replaced(
    sync_db: Database, arguments: tuple[str, ...], name: str, said: str
) -> None:
    sync_db.insert(Task, [{"name": name, "number": 100}, *[{"name": "innocent", "number": 100}] * 9] * 5)
    with supervised(sync_db.url, 1, *arguments) as program:
        eventually(all_are(sync_db, "completed"), PATIENCE)
        log = stopped(program)
    assert program.returncode == 0
    assert log.count(said) >= 1, log
    assert "has died" not in log
    with sync_db.engine.connect() as connection:
        done = list(connection.execute(select(Ledger.task_id, Ledger.worker)))
        rows = list(connection.execute(select(Task.__table__).order_by(Task.id)))
    assert sorted(key for key, _ in done) == [row.id for row in rows]
    assert len({worker for _, worker in done}) >= 2
    assert {(row.max_attempts - row.attempt, row.crashes, row.error) for row in rows} == {(2, 0, None)}


def test_the_limits_of_processes_differ() -> None:
    """Processes are therefore not all replaced at the same moment."""
    some = supervisor.supervised_processes(lambda _: Worker(sessionmaker()), 4, ProcessLimits(1_000, 400))
    assert [child.limits for child in some] == [(1_000, 400), (1_025, 390), (1_050, 380), (1_075, 370)]
    unlimited = supervisor.supervised_processes(lambda _: Worker(sessionmaker()), 2, UNLIMITED)
    assert [child.limits for child in unlimited] == [UNLIMITED] * 2


def test_sigterm_ends_a_command_that_is_still_starting(tmp_path: Path) -> None:
    (tmp_path / "slow_jobs.py").write_text(STARTING)
    command = [sys.executable, "-c", "from sqlqueue.cli import main; main()", "work", "slow_jobs:worker"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline() == "starting\n"
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(60) == 0
