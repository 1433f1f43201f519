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
from tests.support.models import Document, Film, Ledger, Render, Task
from tests.support.rows import count, load_all
from tests.support.workers import Running, Workers, all_are, by_id, eventually, statuses
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


def workers_of(db: Database) -> list[int]:
    """Return the processes that have written to the ledger, in order."""
    with db.engine.connect() as connection:
        return [int(each) for each in connection.scalars(select(Ledger.worker).order_by(Ledger.id))]


@pytest.mark.one_engine
@pytest.mark.parametrize("writes", [None, {}], ids=["completed by the worker", "completed by the child"])
def test_a_child_reports_while_its_handler_runs(sync_db: Database, launcher: Launcher, writes: Any) -> None:
    sync_db.insert(Render, [{"task": "render", "arguments": writes}])
    launcher.start("rendering")
    seen = lambda: load_all(sync_db, Render)[0].progress  # noqa: E731
    assert eventually(lambda: seen() if (seen() or {}).get("text") else None, LONG)["text"] == "half of it"
    launcher.context.release()
    eventually(all_are(sync_db, "completed", Render))
    assert (seen()["value"], seen()["text"], seen()["notes"][0]["text"]) == (1, None, "began")


ENDS = [
    ("write", "completed", None),
    ("log", "completed", None),
    ("even", "retryable", "Even: and good"),
    ("odd", "retryable", "Odd: 1 and 2"),
    ("sys.exit", "retryable", "SystemExit: 3"),
    ("cancelled", "retryable", "CancelledError"),
    ("retry", "retryable", "not yet"),
    ("snooze", "scheduled", None),
    ("discard", "discarded", "never"),
    ("cancel", "cancelled", None),
    ("fork", "retryable", f"Even: the forked process ended with {-signal.SIGTERM}"),
    *[("tenant", "retryable", "Even: the tenant was nobody")] * 4,
]
"""What handlers do, and how their tasks end; calls in the same child do not affect one another."""


def test_the_writes_and_the_completion_are_one_commit_of_a_child(
    db: Database, launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, [{"id": number, "name": name} for number, (name, _, _) in enumerate(ENDS, 1)])
    launcher.start("calm")
    eventually(lambda: statuses(db) == {number: status for number, (_, status, _) in enumerate(ENDS, 1)}, LONG)
    assert by_id(db, Task.error) == {number: error for number, (_, _, error) in enumerate(ENDS, 1)}
    assert "in fail\n    raise error" in caplog.text
    (record,) = (each for each in caplog.records if each.message.startswith("hears of "))
    assert (record.message, vars(record)["key"]) == ("hears of task 2: attempt 1 (2 left)", "2")
    assert count(db, Ledger) == 2
    assert os.getpid() not in workers_of(db)


@pytest.mark.one_engine
@pytest.mark.parametrize(("name", "act"), [("frugal", "write"), ("lean", "grow")])
def test_a_child_at_its_limit_is_replaced(sync_db: Database, launcher: Launcher, name: str, act: str) -> None:
    """The limits are two tasks, and less memory than a task occupies."""
    sync_db.insert(Task, [{"name": act}] * 3)
    launcher.start(name)
    eventually(all_are(sync_db, "completed"), LONG)
    assert len(set(workers_of(sync_db))) > 1


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
    assert by_id(db, Document.error) == {"a": "ValueError: a"}


@pytest.mark.one_engine
def test_a_hanging_child_is_killed_at_the_timeout_and_replaced(db: Database, launcher: Launcher) -> None:
    db.insert(Task, [{"id": n, "name": "hang"} for n in (1, 2)])
    launcher.start("hasty")
    eventually(lambda: statuses(db) == {1: "retryable", 2: "retryable"}, LONG)
    assert set(by_id(db, Task.error).values()) == {"TimeoutError: its handler ran for longer than 0:00:03"}
    assert count(db, Ledger) == 0
    db.insert(Task, [{"id": 3, "name": "write"}])
    eventually(lambda: statuses(db)[3] == "completed", LONG)


@pytest.mark.one_engine
def test_a_dying_child_is_charged_to_its_own_task_alone(sync_db: Database, launcher: Launcher) -> None:
    sync_db.insert(Task, [{"id": 1, "name": "wait"}])
    launcher.start("calm")
    eventually(launcher.context.waiting, LONG)
    sync_db.insert(Task, [{"id": 2, "name": "exit"}, {"id": 3, "name": "die"}])
    eventually(lambda: statuses(sync_db) == {1: "running", 2: "discarded", 3: "discarded"}, LONG)
    launcher.context.release()
    eventually(lambda: statuses(sync_db)[1] == "completed", LONG)
    crashed = "crashed 3 processes: its process"
    assert by_id(sync_db, Task.error) == {
        1: None,
        2: f"{crashed} exited with status 7",
        3: f"{crashed} was killed by SIGKILL, possibly because memory ran out",
    }
    assert by_id(sync_db, Task.attempt) == {1: 1, 2: 3, 3: 3}


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
