"""Several worker processes: replaced when they die, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, delete, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession
from tests.support.models import Base, Ledger, Task
from tests.support.workers import eventually
from tests.worker.children import URL_VARIABLE, lives

pytestmark = [
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]
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


@pytest.mark.usefixtures("tables")
def test_workers_end_when_the_supervisor_is_killed(engine: Engine, supervisor: subprocess.Popen[str]) -> None:
    pids = at_work(engine)
    supervisor.kill()
    eventually(lambda: not any(map(lives, pids)))


def test_workers_that_cannot_start_are_not_replaced(engine: Engine, supervisor: subprocess.Popen[str]) -> None:
    _, errors = supervisor.communicate(timeout=30)
    assert supervisor.returncode == 3
    assert "Traceback" not in errors
    assert "there is no table task" in errors
    assert "replaced" not in errors
