"""Handlers in child processes, which are killed and replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from sqlqueue import ArgumentError, Worker
from tests.support.harness import Database
from tests.support.models import Document, Film, Ledger, Task
from tests.support.rows import count
from tests.support.workers import Running, Workers, all_are, eventually, statuses
from tests.worker import isolated
from tests.worker.children import lives

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
LONG = 120.0
"""Seconds, since children import the models of the whole suite."""


class Launcher:
    """Starts workers of `isolated` on the test's database."""

    def __init__(self, db: Database, workers: Workers, directory: Path) -> None:
        self._db = db
        self._workers = workers
        self.context = isolated.Context(
            db.session_engine.url.render_as_string(hide_password=False), db.is_async, str(directory)
        )

    def start(self, name: str) -> Running:
        maker = isolated.async_sessions if self._db.is_async else isolated.sessions
        engine = self._db.variant(pool_size=20)
        maker.configure(bind=engine.bind)
        worker: Worker = getattr(isolated, f"{name}_async" if self._db.is_async else name)
        return self._workers.start(worker, engine=engine)


@pytest.fixture
def launcher(request: pytest.FixtureRequest, workers: Workers, tmp_path: Path) -> Iterator[Launcher]:
    db: Database = request.getfixturevalue("db" if "db" in request.fixturenames else "sync_db")
    made = Launcher(db, workers, tmp_path)
    file = made.context.write()
    yield made
    made.context.release()
    workers.end_test()
    file.unlink()


def errors(db: Database, model: Any = Task) -> dict[Any, str | None]:
    with db.engine.connect() as connection:
        return {row.id: row.error for row in connection.execute(select(model.id, model.error))}


def attempts(db: Database) -> dict[Any, int]:
    with db.engine.connect() as connection:
        return {row.id: row.attempt for row in connection.execute(select(Task.id, Task.attempt))}


def workers_of(db: Database) -> list[int]:
    """Return the processes that have written to the ledger, in order."""
    with db.engine.connect() as connection:
        return [int(each) for each in connection.scalars(select(Ledger.worker).order_by(Ledger.id))]


def test_the_writes_and_the_completion_are_one_commit_of_a_child(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": 1, "name": "write"}, {"id": 2, "name": "even"}])
    launcher.start("calm")
    eventually(lambda: statuses(db) == {1: "completed", 2: "retryable"}, LONG)
    assert count(db, Ledger) == 1
    assert os.getpid() not in workers_of(db)
    assert errors(db)[2] == "Even: and good"


@pytest.mark.one_engine
def test_a_process_that_an_isolated_handler_forks_can_be_ended(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": 1, "name": "fork"}])
    launcher.start("calm")
    eventually(lambda: statuses(db) == {1: "retryable"}, LONG)
    assert errors(db)[1] == f"Even: the forked process ended with {-signal.SIGTERM}"


@pytest.mark.one_engine
def test_calls_in_a_child_do_not_affect_one_another(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": n, "name": "tenant"} for n in range(1, 7)] + [{"id": 7, "name": "cancelled"}])
    launcher.start("calm")
    eventually(all_are(db, "retryable"), LONG)
    assert errors(db) == {**dict.fromkeys(range(1, 7), "Even: the tenant was nobody"), 7: "CancelledError"}


@pytest.mark.one_engine
def test_a_handler_without_session_has_its_outcome_written_by_the_worker(db: Database, launcher: Launcher) -> None:
    db.insert(Film, [{"id": 1, "stage": "print"}])
    db.insert(Document, [{"id": "a"}])
    launcher.start("plain")
    eventually(all_are(db, "completed", Film), LONG)
    with db.engine.connect() as connection:
        result = connection.scalar(select(Film.result))
    assert result["stage"] == "print"
    assert result["pid"] != os.getpid()
    eventually(all_are(db, "retryable", Document), LONG)
    assert errors(db, Document) == {"a": "ValueError: a"}


@pytest.mark.one_engine
def test_a_hanging_child_is_killed_at_the_timeout_and_replaced(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": n, "name": "hang"} for n in (1, 2)])
    launcher.start("hasty")
    eventually(lambda: statuses(db) == {1: "retryable", 2: "retryable"}, LONG)
    assert set(errors(db).values()) == {"TimeoutError: its handler ran for longer than 0:00:03"}
    assert count(db, Ledger) == 0
    db.insert(Task, [{"id": 3, "name": "write"}])
    eventually(lambda: statuses(db)[3] == "completed", LONG)


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("name", "said"),
    [("exit", "exited with status 7"), ("die", "was killed by SIGKILL, possibly because memory ran out")],
)
def test_a_dying_child_is_charged_to_its_own_task_alone(
    sync_db: Database, launcher: Launcher, name: str, said: str
) -> None:
    sync_db.insert(Task, [{"id": 1, "name": "wait"}])
    launcher.start("calm")
    eventually(launcher.context.waiting, LONG)
    sync_db.insert(Task, [{"id": 2, "name": name}])
    eventually(lambda: statuses(sync_db)[2] == "discarded", LONG)
    assert errors(sync_db)[2] == f"crashed 3 processes: its process {said}"
    launcher.context.release()
    eventually(lambda: statuses(sync_db)[1] == "completed", LONG)
    assert attempts(sync_db) == {1: 1, 2: 3}


@pytest.mark.one_engine
def test_signals_and_exceptions_reach_the_worker(
    sync_db: Database, launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["retry", "snooze", "discard", "cancel", "odd", "sys.exit"]
    sync_db.insert(Task, [{"id": number, "name": name} for number, name in enumerate(names, 1)])
    launcher.start("calm")
    expected = dict(enumerate(["retryable", "scheduled", "discarded", "cancelled", "retryable", "retryable"], 1))
    eventually(lambda: statuses(sync_db) == expected, LONG)
    assert list(dict(sorted(errors(sync_db).items())).values()) == [
        "not yet",
        None,
        "never",
        None,
        "Odd: 1 and 2",
        "SystemExit: 3",
    ]
    assert "in fail\n    raise error" in caplog.text


@pytest.mark.one_engine
def test_a_lost_task_ends_its_child(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": 1, "name": "wait"}])
    launcher.start("leasing")
    (pid,) = eventually(launcher.context.waiting, LONG)
    with db.begin() as session:
        session.cancel(Task)
    eventually(lambda: not lives(pid), LONG)
    assert count(db, Ledger) == 0
    assert statuses(db) == {1: "cancelled"}


@pytest.mark.one_engine
@pytest.mark.usefixtures("launcher")
def test_a_worker_that_cannot_be_imported_is_rejected_at_its_start(sync_db: Database) -> None:
    worker = Worker(sync_db.sessions())
    worker.handler(Task, isolation="process")(isolated.handle)
    with pytest.raises(ArgumentError, match="global variable of a module"):
        worker.run()
    worker.origin = "tests.worker.isolated:nothing"
    with pytest.raises(ArgumentError, match=r"cannot load .*:nothing: .*no attribute"):
        worker.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"isolation": "thread"}, "'process' or None"),
        ({"isolation": "process", "mode": "lock"}, "one transaction of the worker"),
        ({"max_tasks": 3}, "isolation='process'"),
        ({"isolation": "process", "max_memory": 0}, "max_memory=0"),
    ],
)
def test_invalid_arguments_raise_an_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        isolated.Worker(isolated.sessions).handler(Task, **options)(isolated.handle)
