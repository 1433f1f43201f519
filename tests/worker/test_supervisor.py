"""Several worker processes: replaced when they die, have run many tasks or have grown, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from sqlqueue._support import processes
from sqlqueue._support.processes import MIB
from sqlqueue.worker.run import UNLIMITED, ProcessLimits
from sqlqueue.worker.supervisor import supervised_processes
from tests.support.harness import Database
from tests.support.models import Base, Ledger, Task
from tests.support.workers import all_are, eventually
from tests.worker.children import URL_VARIABLE, lives
from tests.worker.crashing import GROWING, stopped, supervised

has_proc = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
PROGRAM = """
import sys
from sqlqueue.worker.supervisor import supervise
from tests.worker.children import load
if __name__ == "__main__":
    sys.exit(supervise(load, 2))
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/worker.db")
    yield made
    made.dispose()


@pytest.fixture
def tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)


@pytest.fixture
def supervisor(engine: Engine, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {URL_VARIABLE: str(engine.url), "PYTHONPATH": str(Path(__file__).parents[2])}
    started = subprocess.Popen(
        [sys.executable, program], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    yield started
    os.killpg(started.pid, signal.SIGKILL) if started.poll() is None else None
    assert started.stderr is not None
    started.stderr.close()
    started.wait()


def at_work(engine: Engine, *, without: set[int] = frozenset()) -> set[int]:  # type: ignore[assignment]
    """Return two processes that are working now."""

    def found() -> set[int]:
        with sessionmaker(engine, class_=QueueSession).begin() as session:
            pids = {int(pid) for pid in session.scalars(select(Ledger.worker).distinct())} - without
            session.add_all(Task() for _ in range(4))
            return pids if len(pids) == 2 else set()

    with engine.begin() as connection:
        connection.execute(delete(Ledger))
    pids: set[int] = eventually(found, 60)
    return pids


@has_proc
@pytest.mark.usefixtures("tables")
def test_a_dead_process_is_replaced_and_sigterm_ends_all(engine: Engine, supervisor: subprocess.Popen[str]) -> None:
    first = at_work(engine)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    second = at_work(engine, without=first)
    supervisor.send_signal(signal.SIGTERM)
    _, errors = supervisor.communicate(timeout=20)
    assert supervisor.returncode == 0
    assert not any(map(lives, first | second))
    assert errors.count("was killed by SIGKILL, possibly because memory ran out (-9), replaced in") == 2


@has_proc
@pytest.mark.usefixtures("tables")
def test_workers_end_when_the_supervisor_is_killed(engine: Engine, supervisor: subprocess.Popen[str]) -> None:
    pids = at_work(engine)
    supervisor.kill()
    eventually(lambda: not any(map(lives, pids)))


@has_proc
def test_workers_that_cannot_start_are_not_replaced(engine: Engine, supervisor: subprocess.Popen[str]) -> None:
    _, errors = supervisor.communicate(timeout=30)
    assert supervisor.returncode == 3
    assert "Traceback" not in errors
    assert "there is no table task" in errors
    assert "replaced" not in errors


# -- processes that ignore Ctrl-C, and a Ctrl-C that arrives while they start -----------------------------------------


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore the handling of SIGINT, since a shell may have started the tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_during_the_start_takes_effect_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = forkserver._forkserver
    start_server, here_is_one = server.ensure_running, []

    def ensure_running() -> None:
        signal.raise_signal(signal.SIGINT)
        here_is_one.append(True)
        start_server()

    monkeypatch.setattr(server, "ensure_running", ensure_running)
    with pytest.raises(KeyboardInterrupt):
        processes.start(print, daemon=True)
    assert here_is_one


@pytest.mark.usefixtures("interruptible")
def test_the_process_ignores_interrupts_and_its_programs_do_not() -> None:
    here, there = processes.CONTEXT.Pipe()
    processes.start(tell, there, daemon=True)
    there.close()
    assert here.recv() == (signal.SIG_IGN, set())


def tell(channel: Connection) -> None:
    channel.send((signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())))


# -- worker processes that have run many tasks, or have grown, are replaced without effect on tasks -------------------

PATIENCE = 120
STARTING = """
import time
print("starting", flush=True)
time.sleep(60)
"""


@pytest.mark.one_engine
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
    some = supervised_processes(lambda _: Worker(sessionmaker()), 4, ProcessLimits(1_000, 400))
    assert [child.limits for child in some] == [(1_000, 400), (1_025, 390), (1_050, 380), (1_075, 370)]
    unlimited = supervised_processes(lambda _: Worker(sessionmaker()), 2, UNLIMITED)
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
