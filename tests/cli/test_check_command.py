"""`sqlqueue check` as a program, its arguments, and what it reports of SQLite files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from typer.testing import CliRunner

from sqlqueue import ArgumentError, Finding, check, verify_schema
from sqlqueue.cli import application
from sqlqueue.diagnostics.drift import unserved_claims
from sqlqueue.dialects import adapters
from tests.cli.invoking import out, run
from tests.support.check_models import Base, EmptyBase, Plain, Post
from tests.support.models import Invoice, Notice
from tests.support.processes import run_program

MODELS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlqueue import QueueMixin

class Base(DeclarativeBase):
    pass

class Job(QueueMixin, Base):
    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)

class Holder:
    base = Base

name = "job"
"""


def make(path: Path, journal_mode: str = "WAL") -> None:
    """A database with the tables of `tests.support.check_models`."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA journal_mode = {journal_mode}")
    Base.metadata.create_all(engine)
    engine.dispose()


def findings(url: str, target: Any = Base) -> list[Finding]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = list(check(connection, target))
    engine.dispose()
    return found


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "checked.db"
    make(path)
    return path


# -- the file ------------------------------------------------------------------------------------------------------


def test_another_journal_mode_is_reported(tmp_path: Path) -> None:
    make(tmp_path / "old.db", "DELETE")
    (finding,) = findings(f"sqlite:///{tmp_path / 'old.db'}")
    assert (finding.severity, finding.code) == ("warning", "journal-mode")
    assert "WAL" in finding.fix


def test_an_in_memory_database_has_no_journal_finding() -> None:
    assert {finding.code for finding in findings("sqlite://")} == {"missing-table"}


def test_a_read_only_url_is_reported(database: Path) -> None:
    (finding,) = findings(f"sqlite:///file:{database}?mode=ro&uri=true")
    assert (finding.severity, finding.code) == ("error", "read-only")


UNPRIVILEGED = """
import os, sys
from sqlalchemy import create_engine
from sqlqueue import check
from tests.support.check_models import Base
create_engine(sys.argv[1]).connect().close()  # so that all is imported that only root may read
os.geteuid() or os.setuid(65534)
with create_engine(sys.argv[1]).connect() as connection:
    print([finding.code for finding in check(connection, Base) if finding.severity == "error"])
"""


def test_a_file_that_cannot_be_written_is_reported() -> None:
    with tempfile.TemporaryDirectory() as name:  # unlike tmp_path, other users may enter it
        directory, path = Path(name), Path(name) / "checked.db"
        make(path, "DELETE")
        path.chmod(0o444)
        directory.chmod(0o555)
        told = python(directory, UNPRIVILEGED, f"sqlite:///{path}")
        directory.chmod(0o755)
    assert told.stdout == "['read-only', 'read-only']\n", told.stderr  # the file, and the directory for its journal


# -- the target ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [Base, Base.metadata, Post])
def test_bases_metadata_and_models_are_accepted(target: Any) -> None:
    (finding,) = findings("sqlite://", target)
    assert finding.model is Post


@pytest.mark.parametrize("function", [check, verify_schema])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        (object(), "is not a queue model, a declarative base or a MetaData"),
        (EmptyBase, "no queue in EmptyBase"),
        (MetaData(), "no queue in"),
        (Plain, "Plain is not a queue model"),
    ],
    ids=["object", "base", "metadata", "model"],
)
def test_a_target_without_queues_is_rejected(function: Any, target: Any, said: str) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(ArgumentError, match=said):
        function(connection, target)
    engine.dispose()


def test_classes_of_one_table_are_one_queue() -> None:
    models = [finding.model for finding in findings("sqlite://", Notice.metadata) if finding.table == "notice"]
    assert models == [Notice]


def test_all_tables_of_a_model_are_checked() -> None:
    engine = create_engine("sqlite://")
    for name in ("invoice", "queue_pause"):
        Invoice.metadata.tables[name].create(engine)
    with engine.connect() as connection:
        (finding,) = check(connection, Invoice)
        assert (finding.severity, finding.code) == ("error", "missing-table")
        assert "credit_note" in finding.message
        Invoice.metadata.tables["credit_note"].create(connection)
        assert list(check(connection, Invoice)) == []
    engine.dispose()


@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_engines_without_query_plans_get_a_note(name: str) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        (finding,) = unserved_claims(connection, adapters()[name], Post.__queue_spec__)
    assert (finding.severity, finding.code, finding.model) == ("note", "plan-not-asked", Post)
    engine.dispose()


# -- the program ---------------------------------------------------------------------------------------------------


def python(directory: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
    command = [sys.executable, "-P", "-c", code, *arguments]  # as a script: the current directory is not on its path
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "lacking.py").write_text("import shop, nothing_of_that_name")
    return tmp_path


def test_the_exit_status_of_a_deployment(project: Path) -> None:
    (project / "shop.db").touch()
    arguments = ["--url", "sqlite:///shop.db", "shop:Holder.base"]
    told = run_program(["sqlqueue", "check", *arguments], project, COLUMNS="200")
    assert told.returncode == 1
    assert "there is no table job" in told.stdout
    assert told.stderr == ""


def test_statements_to_copy_are_not_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "checked.db", "DELETE")
    monkeypatch.setenv("COLUMNS", "40")
    arguments = ["check", "--url", f"sqlite:///{tmp_path / 'checked.db'}", "tests.support.check_models:Base"]
    told = CliRunner().invoke(application(), arguments)
    message, fix, *_ = told.stdout.splitlines()
    assert message.startswith("warning the journal mode is delete, in which readers block claims, and claims")
    assert fix == "    fix: run once, with any SQLite client: PRAGMA journal_mode = WAL"


def test_the_queues_are_those_of_stats(url: str) -> None:
    checked = json.loads(run("check", "--json", model="Base").stdout)["queues"]
    assert checked == [each["model"] for each in json.loads(out("stats", "--json", model="Base"))]


def test_warnings_may_count_as_errors(tmp_path: Path) -> None:
    make(tmp_path / "checked.db", "DELETE")
    arguments = ["check", "--url", f"sqlite:///{tmp_path / 'checked.db'}", "tests.support.check_models:Base"]
    told = CliRunner().invoke(application(), arguments)
    assert (told.exit_code, told.stderr) == (0, "")
    assert "1 queue: 1 warning." in told.stdout
    assert CliRunner().invoke(application(), [*arguments, "--strict"]).exit_code == 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "module:attribute"),
        (":Base", "module:attribute"),
        ("shop:Nothing", "has no Nothing"),
        ("shop:name", "not a queue model"),
        ("nowhere:Base", "no module nowhere"),
        ("shop.models:Base", "no module shop.models"),
        ("broken:Base", "ZeroDivisionError"),
        ("lacking:Base", "nothing_of_that_name"),
        ("tests.support.check_models:EmptyBase", "no queue in EmptyBase"),
    ],
)
def test_an_invalid_target_is_rejected(project: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    told = CliRunner().invoke(application(), ["check", "--url", "sqlite://", target])
    assert told.exit_code == 2
    assert said in " ".join(told.stderr.replace("│", " ").split())


def test_the_url_can_come_from_the_environment(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLQUEUE_DATABASE_URL", f"sqlite:///{database}")
    told = CliRunner().invoke(application(), ["check", "tests.support.check_models:Base"])
    assert (told.exit_code, told.stdout) == (0, f"{_sqlite()}, 1 queue: no problems found.\n")


def _sqlite() -> str:
    import sqlite3

    return f"SQLite {sqlite3.sqlite_version}"
