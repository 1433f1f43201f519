"""The proof: on every engine, and for a queue whose guarantees have been removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, inspect, make_url
from typer.testing import CliRunner

from sqlqueue.cli import application
from sqlqueue.evaluation.prove.application import Base, Task
from sqlqueue.evaluation.prove.run import Promise, Proof
from tests.support.harness import Database
from tests.support.processes import PROGRAM, run_program
from tests.support.workers import eventually

BRIEFLY = ("--minutes", "0.02")
PATIENCE = 300.0
# without the attempt and the token, any claim settles a running row
NO_FENCE = """
from sqlalchemy import Integer, literal_column
from sqlqueue.lifecycle.transitions import Fence
Fence.marked = property(lambda self: (literal_column("1", Integer()),))
Fence.marks = lambda self, claims: [(1,) for _ in claims]
"""
# a claim checks only the state, not whether the lease has ended
NO_LEASE = """
import sqlqueue.sql as sql
honest = sql.come_due
sql.come_due = lambda spec: tuple(each for number, each in enumerate(honest(spec)) if number != 1)
"""


def tables_of(url: URL) -> set[str]:
    engine = create_engine(url)
    found = set(inspect(engine).get_table_names()) & set(Base.metadata.tables)
    engine.dispose()
    return found


@pytest.mark.timeout(PATIENCE)
def test_all_guarantees_hold(sync_db: Database, tmp_path: Path) -> None:
    url = sync_db.url.render_as_string(hide_password=False)
    ended = run_program(["sqlqueue", "prove", "--url", url, *BRIEFLY, "--json"], tmp_path, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["ok"]
    assert {
        promise["promise"] for promise in report["promises"] if promise["broken"] or not promise["observed"]
    } == set()
    assert min(report["faults"][kind] for kind in ("killed", "frozen", "cut off")) > 0
    assert tables_of(sync_db.url) == set()


@pytest.fixture
def mutated(tmp_path: Path) -> Any:
    """Run the proof in processes that first modify the package."""

    def run(change: str) -> Mapping[str, Any]:
        (tmp_path / "sitecustomize.py").write_text(change)
        command = [*PROGRAM, "prove", "--url", f"sqlite:///{tmp_path}/proof.db", *BRIEFLY, "--json"]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
        assert ended.returncode == 1, ended.stdout + ended.stderr
        report = json.loads(ended.stdout)
        assert not report["ok"]
        return {promise["promise"]: promise["broken"] for promise in report["promises"] if promise["broken"]}

    return run


@pytest.mark.timeout(PATIENCE)
def test_a_queue_without_a_fence_breaks_its_promises(mutated: Any) -> None:
    assert mutated(NO_FENCE)["a claim that has lost its task cannot complete it"] > 0


@pytest.mark.timeout(PATIENCE)
def test_a_queue_without_leases_breaks_its_promises(mutated: Any) -> None:
    assert mutated(NO_LEASE)["a lease keeps others out"] > 0


@pytest.mark.timeout(PATIENCE)
def test_an_interrupted_proof_leaves_no_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proof.db"
    running = subprocess.Popen([*PROGRAM, "prove", "--url", url, "--minutes", "10"], stderr=subprocess.PIPE)
    eventually(lambda: tables_of(make_url(url)) == set(Base.metadata.tables), within=60)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, b"The tables are dropped" in said) == (130, True)
    assert tables_of(make_url(url)) == set()


def test_existing_tables_are_not_touched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proof.db"
    engine = create_engine(url)
    Task.__table__.create(engine)
    ended = CliRunner().invoke(application(), ["prove", "--url", url])
    assert ended.exit_code == 2
    assert "sqlqueue_prove_task already exists" in ended.stderr
    assert inspect(engine).get_table_names() == ["sqlqueue_prove_task"]
    engine.dispose()


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite+aiosqlite:///proof.db"])
def test_an_unusable_database_is_an_error(url: str) -> None:
    ended = CliRunner().invoke(application(), ["prove", "--url", url])
    assert ended.exit_code == 2
    assert ended.stderr.startswith("sqlqueue prove: ")


def test_an_unobserved_promise_is_not_proven() -> None:
    seen = Promise(promise="a", observed=1, broken=0, observation="")
    unseen = Promise(promise="b", observed=0, broken=0, observation="")
    given = {"engine": "", "version": "", "seconds": 0.0, "faults": {}, "recovery": {}}
    assert Proof(promises=[seen], **given).is_ok
    assert not Proof(promises=[seen, unseen], **given).is_ok
