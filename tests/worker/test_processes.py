"""Worker processes and their supervisor: tasks that crash them, replacements, limits, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from sqlqueue._support import processes as child_processes
from sqlqueue._support.processes import MIB
from sqlqueue.worker.run import UNLIMITED, ProcessLimits
from sqlqueue.worker.supervisor import supervised_processes
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.processes import Child, Processes
from tests.support.rows import count, load_all, rows
from tests.support.workers import PATIENCE, Workers, all_are, eventually, statuses, with_session
from tests.worker import children
from tests.worker.children import lives
from tests.worker.crashing import ALONE, APART, GROWING, POISON, STALLING, stopped, supervised

pytestmark = pytest.mark.timeout(220)
LONG = 150
"""Seconds, since each replacement imports the models of the whole suite."""
CALLS = 8
"""More calls of the poison task than any test allows."""
has_proc = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")


def crash(db: Database, how: str, said: str, processes: int = 1, *, program: str = APART, mode: str = "lease") -> str:
    """Run a poison task among innocent ones: it alone is discarded, and no other task is charged an attempt. Returns
    the log of the supervisor."""
    innocents = [{"name": "innocent", "number": 300}] * 4
    db.insert(Task, [*innocents, {"name": f"{POISON}:{how}", "number": 150}, *innocents])
    with supervised(db.url, processes, program=program, mode=mode) as supervisor:
        eventually(lambda: is_over(load_all(db, Task)), LONG)
        log = stopped(supervisor)
    assert supervisor.returncode == 0
    tasks = load_all(db, Task)
    (poison,) = (task for task in tasks if task.name.startswith(POISON))
    assert (poison.status, poison.crashes) == ("discarded", 3)
    assert (poison.error or "").startswith(f"crashed 3 processes: its process {said}")
    tasks.remove(poison)
    # of three attempts, only the one that completed it counts
    assert {(task.status, task.crashes, task.max_attempts - task.attempt) for task in tasks} == {("completed", 0, 2)}
    ledger = load_all(db, Ledger)
    assert sorted(each.task_id for each in ledger) == [task.id for task in tasks]
    assert not any(lives(int(each.worker)) for each in ledger)
    return log


def is_over(tasks: list[Task]) -> bool:
    """Return whether all tasks are final, or the poison task is not discarded in time."""
    is_endless = any(task.name.startswith(POISON) and task.attempt > CALLS for task in tasks)
    return is_endless or all(task.status in ("completed", "discarded") for task in tasks)


@pytest.mark.one_engine
def test_the_poison_task_alone_is_discarded(sync_db: Database) -> None:
    log = crash(sync_db, "exit", "exited with status 7", 2)
    assert log.count("given up") == log.count("has died") == 1  # the others in child processes
    assert "is suspected: its process " in log


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("how", "said", "program", "died"),
    [
        ("leave", "exited with status 0", APART, 1),
        ("kill", "was killed by SIGKILL, possibly because memory ran out", ALONE, 3),
    ],
)
def test_the_poison_task_is_discarded_however_it_crashes(
    sync_db: Database, how: str, said: str, program: str, died: int
) -> None:
    log = crash(sync_db, how, said, program=program)
    assert (log.count("given up"), log.count("has died")) == (1, died)


def test_in_lock_mode_the_poison_task_alone_is_discarded(sync_db: Database) -> None:
    crash(sync_db, "kill", "was killed by SIGKILL", mode="lock")


@pytest.mark.one_engine
def test_of_a_chunk_the_poison_task_alone_is_discarded(sync_db: Database) -> None:
    crash(sync_db, "exit", "exited with status 7", mode="chunk")


# -- several processes ------------------------------------------------------------------------------------------------


def working(engine: Engine, *former: int) -> set[int]:
    """Return two processes that are working now."""

    def found() -> set[int]:
        with sessionmaker(engine, class_=QueueSession).begin() as session:
            pids = {int(pid) for pid in session.scalars(select(Ledger.worker).distinct())} - set(former)
            session.add_all(Task(number=20) for _ in range(8))
            return pids if len(pids) == 2 else set()

    pids: set[int] = eventually(found, LONG)
    return pids


@has_proc
def test_dead_processes_are_replaced_and_end_with_their_supervisor(file: Engine) -> None:
    with supervised(file.url, 2, program=ALONE) as supervisor:
        first = working(file)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        second = working(file, *first)
        supervisor.kill()
        eventually(lambda: not any(map(lives, first | second)))
        _, log = supervisor.communicate(timeout=PATIENCE)
    assert log.count("was killed by SIGKILL, possibly because memory ran out (-9), replaced in") == 2


@pytest.mark.one_engine
def test_a_process_whose_event_loop_stands_still_is_replaced(sync_db: Database) -> None:
    """As one that has died: its tasks are suspected or released, and no attempt counts."""
    sync_db.insert(Task, [{"name": POISON}, *[{"name": "innocent"}] * 3])
    with supervised(sync_db.url, 1, "--replace-stalled", program=STALLING) as supervisor:
        eventually(all_are(sync_db, "completed"), LONG)
        log = stopped(supervisor)
    assert log.count("was killed because its event loop had been standing still for 2 s (-9), replaced in") == 1
    assert "is suspected: its process was killed because" in log
    assert {(task.crashes, task.max_attempts - task.attempt) for task in load_all(sync_db, Task)} <= {(0, 2)}


def test_workers_that_cannot_start_are_not_replaced(engine: Engine) -> None:
    with supervised(engine.url, 2, program=ALONE) as supervisor:
        _, log = supervisor.communicate(timeout=PATIENCE)
    assert supervisor.returncode == 3
    assert "Traceback" not in log
    assert "there is no table task" in log
    assert "replaced" not in log


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("limit", "name", "said"),
    [(("--max-tasks", "5"), "", " has run "), (("--max-memory", "400"), f"{GROWING}:{100 * MIB}", " occupies ")],
)
def test_a_process_at_its_limit_is_replaced(sync_db: Database, limit: tuple[str, ...], name: str, said: str) -> None:
    """It has no effect on the tasks that it is running."""

    def two_have_worked() -> bool:
        if all(status == "completed" for status in statuses(sync_db).values()):
            sync_db.insert(Task, [{"name": name, "number": 100}, *[{"name": "", "number": 100}] * 5])
        return len({each.worker for each in load_all(sync_db, Ledger)}) > 1

    with supervised(sync_db.url, 1, *limit) as supervisor:
        eventually(two_have_worked, LONG)
        eventually(all_are(sync_db, "completed"), LONG)
        log = stopped(supervisor)
    assert supervisor.returncode == 0
    assert said in log
    assert "has died" not in log
    tasks = load_all(sync_db, Task)
    assert sorted(each.task_id for each in load_all(sync_db, Ledger)) == [task.id for task in tasks]
    assert {(task.max_attempts - task.attempt, task.crashes, task.error) for task in tasks} == {(2, 0, None)}


def test_the_limits_of_processes_differ() -> None:
    """Processes are therefore not all replaced at the same moment."""
    some = supervised_processes(lambda _: Worker(sessionmaker()), 4, ProcessLimits(1_000, 400))
    assert [child.limits for child in some] == [(1_000, 400), (1_025, 390), (1_050, 380), (1_075, 370)]
    unlimited = supervised_processes(lambda _: Worker(sessionmaker()), 2, UNLIMITED)
    assert [child.limits for child in unlimited] == [UNLIMITED] * 2


STARTING = """
import time
print("starting", flush=True)
while True:  # a signal that arrives just before a call of sleep() does not end that call
    time.sleep(0.1)
"""


def test_sigterm_ends_a_command_that_is_still_starting(tmp_path: Path) -> None:
    (tmp_path / "slow_jobs.py").write_text(STARTING)
    command = [sys.executable, "-c", "from sqlqueue.cli import main; main()", "work", "slow_jobs:worker"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline() == "starting\n"
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(60) == 0


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
        child_processes.start(print, daemon=True)
    assert here_is_one


@pytest.mark.usefixtures("interruptible")
def test_the_process_ignores_interrupts_and_its_programs_do_not() -> None:
    here, there = child_processes.CONTEXT.Pipe()
    child_processes.start(tell, there, daemon=True)
    there.close()
    assert here.recv() == (signal.SIG_IGN, set())


def tell(channel: Connection) -> None:
    channel.send((signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())))


# -- how a process ends -----------------------------------------------------------------------------------------------


def signal_twice(child: Child) -> None:
    child.signal(signal.SIGTERM)
    time.sleep(1.5)  # a busy child would take an earlier signal for the same one
    child.signal(signal.SIGTERM)


@pytest.mark.one_engine
def test_after_sigterm_a_process_finishes_its_tasks(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(4))
    child = processes.spawn(children.work, sync_db.url)
    child.wait_until_arrived()
    child.signal(signal.SIGTERM)
    time.sleep(0.3)
    child.let_pass()
    assert child.result() == "ended"
    assert sorted(statuses(sync_db).values()) == ["available"] * 3 + ["completed"]
    assert count(sync_db, Ledger) == 1


@pytest.mark.one_engine
def test_a_second_sigterm_does_not_wait(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(2))
    child = processes.spawn(children.work, sync_db.url)
    child.wait_until_arrived()
    signal_twice(child)
    assert child.result() == "ended"
    with sync_db.begin() as other:
        tasks = other.claim_many(Task, limit=2)
    assert sorted((task.attempt, task.max_attempts) for task in tasks) == [(1, 3), (2, 4)]


@pytest.mark.one_engine
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_process_that_a_handler_forks_can_be_ended(
    sync_db: Database, processes: Processes, is_coroutine: bool
) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.fork, sync_db.url, is_coroutine)
    assert child.result() == (-signal.SIGTERM, True)
    assert all_are(sync_db, "completed")()


@pytest.mark.one_engine
@pytest.mark.parametrize("own_pool", [False, True])
def test_a_thread_of_a_coroutine_keeps_no_process(sync_db: Database, processes: Processes, own_pool: bool) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.never_return, sync_db.url, own_pool)
    child.wait_until_arrived()
    signal_twice(child)
    assert child.result(PATIENCE) == "ended"
    assert child.status == 0
    assert all_are(sync_db, "available")()


def test_tasks_of_a_killed_process_are_taken_over_once_their_lease_ends(
    sync_db: Database, workers: Workers, processes: Processes
) -> None:
    sync_db.insert(Task, rows(3))
    child = processes.spawn(children.write_and_stay, sync_db.url)
    child.wait_until_arrived()
    held = select(Task.id, Task.available_at).where(Task.status == "running")
    with sync_db.engine.connect() as connection:
        ((key, _),) = connection.execute(held)
    child.kill()
    with sync_db.engine.connect() as connection:
        ((_, lease_ends),) = connection.execute(held)
    workers.serve(Task, with_session(sync_db), concurrency=2)
    eventually(all_are(sync_db, "completed"))
    assert count(sync_db, Ledger) == 3
    assert count(sync_db, Task, Task.id == key, Task.attempt == 2, Task.claimed_at >= lease_ends) == 1
