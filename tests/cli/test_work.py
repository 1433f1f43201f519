"""`sqlqueue work`: options and schemas with which a worker cannot start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from sqlqueue.cli import application
from tests.cli.invoking import PROGRAM, words
from tests.support.models import Base, Letter, Mail, Task
from tests.support.processes import run_program

pytestmark = pytest.mark.timeout(600)
PATIENCE = 180.0
"""Seconds that a command may take for what a test waits for: each of its processes imports the models of the suite."""

JOBS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlqueue import Worker
from tests.support.task import Task
worker = Worker(sessionmaker(create_engine("sqlite:///work.db")))
worker.handler(Task)(lambda task: None)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "jobs_of_test.py").write_text(JOBS)
    return tmp_path


def work(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(["sqlqueue", "work", "jobs_of_test:worker", *arguments], directory, timeout=PATIENCE)


def test_a_worker_without_its_table_logs_this_once(jobs: Path) -> None:
    told = work(jobs)
    assert (told.returncode, told.stdout) == (3, "")
    (line,) = told.stderr.splitlines()
    assert "ERROR" in line
    assert "the schema does not match the models: there is no table task. To fix it, migrate: alembic" in line


def test_an_application_that_configures_logging_logs_each_line_once(jobs: Path) -> None:
    configured = 'import logging\nlogging.basicConfig(format="own format: %(message)s")\n'
    (jobs / "jobs_of_test.py").write_text(configured + JOBS)
    (line,) = (each for each in work(jobs).stderr.splitlines() if "the schema does not match" in each)
    assert line.startswith("own format: ")


SHOP = f"""{JOBS.partition("worker.handler")[0]}
import atexit, logging
atexit.register(lambda: logging.getLogger("exit").warning("ends"))
class Shown(logging.StreamHandler):
    def format(self, record):
        return '{{"logger": "audit"}}'
logging.getLogger("audit").addHandler(Shown())
@worker.handler(Task)
def handle(task):
    logging.getLogger("shop").info("sent")
    logging.getLogger("shop").debug("not shown")
    logging.getLogger("audit").warning("seen")
    worker.stop()
"""


def test_lines_of_the_application_are_logged_too_and_each_once(jobs: Path) -> None:
    engine = create_engine(f"sqlite:///{jobs}/work.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Task(id=7))
    engine.dispose()
    (jobs / "jobs_of_test.py").write_text(SHOP)
    command = [sys.executable, "-P", "-c", PROGRAM, "work", "jobs_of_test:worker", "--log-format", "json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    told = subprocess.run(command, cwd=jobs, env=environment, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in told.stderr.splitlines()]
    assert [each["logger"] for each in lines].count("audit") == 1
    assert [each["logger"] for each in lines].count("exit") == 2, "not in each of the two processes"
    (own,) = (each for each in lines if each["logger"] == "shop")
    assert (own["level"], own["message"], own["queue"], own["key"], own["attempt"]) == ("INFO", "sent", "task", "7", 1)
    assert sum("started, for task" in each.get("message", "") for each in lines) == 1


def test_a_port_that_cannot_be_served_ends_the_command(jobs: Path) -> None:
    told = work(jobs, "--health", "192.0.2.1:8080")
    assert (told.returncode, told.stdout) == (3, "")
    assert "cannot serve health checks on 192.0.2.1 port 8080: " in words(told.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--health", "host"], "'host' is not an address: give PORT, HOST:PORT or [IPV6]:PORT, as in 0.0.0.0:8080"),
        (["--health", "65535", "--processes", "2"], "--health: there are fewer than 2 ports from 65535 upwards"),
        (["--queue", "mail"], "jobs_of_test:worker has no handlers for mail; its queues are task"),
        (["--queue", "task", "-q", "mail"], "no worker has handlers for mail"),
        (["jobs_of_test:Task"], "jobs_of_test:Task is DeclarativeAttributeIntercept, not a sqlqueue.Worker"),
        (["--max-tasks", "0"], "greater than or equal to 1"),
        (["--max-memory", "-1"], "greater than or equal to 1"),
    ],
)
def test_invalid_worker_options_are_rejected(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.setattr(sys, "path", [*sys.path])
    told = CliRunner().invoke(application(), ["work", "jobs_of_test:worker", *arguments])
    assert (told.exit_code, told.stdout) == (2, "")
    assert said in words(told.stderr)


SEVERAL = """
import logging
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlqueue import Worker
from tests.support.models import Base, Letter, Mail, Task

engine = create_engine("sqlite:///several.db")
Base.metadata.create_all(engine)
logging.basicConfig(level="INFO", format="%(message)s")
worker, other = (Worker(sessionmaker(engine)) for _ in range(2))
for one, model in ((worker, Task), (worker, Mail), (other, Letter)):
    isolation = "process" if model is Mail else None
    one.handler(model, isolation=isolation)(lambda task: print("VERSION", type(task).__name__))
"""


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Callable[..., None]]]:
    """Run the command; yield its process, and a function that waits until it has printed each of some texts once
    more."""
    command = [sys.executable, "-P", "-u", "-c", PROGRAM, "work", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        printed: list[str] = []

        def wait_for(*texts: str) -> None:
            limit, missing = threading.Timer(PATIENCE, process.kill), [*texts]
            limit.start()
            for line in process.stdout or ():
                printed.append(line)
                missing = [text for text in missing if text not in line]
                if not missing:
                    break
            limit.cancel()
            assert not missing, f"{missing} is not in {printed}"

        try:
            yield process, wait_for
        finally:
            process.kill()


def add(directory: Path, *tasks: Any) -> None:
    engine = create_engine(f"sqlite:///{directory / 'several.db'}")
    with Session(engine) as session, session.begin():
        session.add_all(tasks)
    engine.dispose()


def test_several_workers_serve_chosen_queues_and_are_reloaded(jobs: Path) -> None:
    code = jobs / "jobs_of_test.py"
    code.write_text(SEVERAL.replace("VERSION", "first"))
    targets = ["jobs_of_test:worker", "jobs_of_test:other"]
    with running(jobs, *targets, "-q", "mail", "-q", "Letter", "--reload") as (process, wait_for):
        wait_for("started")
        add(jobs, Task(name="left"), Letter(recipient="a"))
        wait_for("first Letter")
        add(jobs, Mail())
        wait_for("first Mail")
        code.write_text("not Python")
        wait_for("has died")
        code.write_text(SEVERAL.replace("VERSION", "second"))
        add(jobs, Mail(), Letter(recipient="a"))
        wait_for("second Mail", "second Letter")  # until then, a process may end with the status of its predecessor
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    engine = create_engine(f"sqlite:///{jobs / 'several.db'}")
    with Session(engine) as session:
        assert session.scalars(select(Task.status)).all() == ["available"]
    engine.dispose()
