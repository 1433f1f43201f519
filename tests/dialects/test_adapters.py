"""The adapter of each engine: rejected versions, MariaDB behind a mysql:// URL, and an external engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Identity, create_engine, event, inspect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlqueue
from sqlqueue import QueueMixin, UnsupportedDialectError, utcnow
from sqlqueue.dialects import adapter_for, adapters
from tests.support.harness import Database
from tests.support.models import Base, Task

REFUSED = [
    ("mariadb", (10, 5, 29), "10.5.29-MariaDB", "10.6"),
    ("mysql", (5, 7, 44), "5.7.44-log", "8.0.2"),
    ("mysql", (8, 0, 1), "8.0.1-dmr", "8.0.2"),
    ("mysql", (8, 0, 11), "8.0.11-TiDB-v8.5.0", "TiDB"),
    ("postgresql", (9, 4, 26), "", "12"),
    ("postgresql", (11, 22), "", "12"),
    ("oracle", (11, 2, 0, 4), "", "12.2"),
    ("mssql", (12, 0, 6024, 0), "3", "13"),
    ("mssql", (12, 0, 2000, 8), "11", "13"),
    ("sqlite", (3, 34, 1), "", "3.35"),
    ("mysql", (8, 0, 40), "8.0.40-Vitess", "Vitess"),
    ("cockroachdb", (9, 5, 0), "CockroachDB CCL v23.2.4 (x86_64-pc-linux-gnu, built 2024/04/08)", "24.2.3"),
    ("cockroachdb", (9, 5, 0), "CockroachDB CCL v24.2.2 (x86_64-pc-linux-gnu, built 2024/09/16)", "24.2.3"),
    ("cockroachdb", (9, 5, 0), "", "24.2.3"),
]
ACCEPTED = [
    ("mariadb", (10, 6, 0), "10.6.0-MariaDB"),
    ("mariadb", (11, 8, 2), "11.8.2-MariaDB"),
    ("mysql", (8, 0, 2), "8.0.2"),
    ("mysql", (9, 7, 0), "9.7.0"),
    ("postgresql", (12, 0), ""),
    ("postgresql", (18, 1), ""),
    ("oracle", (12, 2, 0, 1), ""),
    ("oracle", (23, 0), ""),
    ("mssql", (13, 0, 1601, 5), ""),
    ("mssql", (16, 0, 1000, 6), ""),
    ("mssql", (12, 0, 2000, 8), "5"),
    ("mssql", (12, 0, 2000, 8), "8"),
    ("mssql", (12, 0, 2000, 8), "12"),
    ("sqlite", (3, 35, 0), ""),
    ("cockroachdb", (9, 5, 0), "CockroachDB CCL v24.2.3 (x86_64-pc-linux-gnu, built 2024/09/23)"),
    ("cockroachdb", (9, 5, 0), "CockroachDB CCL v25.2.0 (x86_64-pc-linux-gnu, built 2025/05/09)"),
]


@pytest.mark.parametrize(("name", "version", "banner", "needed"), REFUSED, ids=str)
def test_old_versions_are_rejected(name: str, version: tuple[int, ...], banner: str, needed: str) -> None:
    with pytest.raises(UnsupportedDialectError) as refused:
        adapters()[name].inspection.judge(version, banner)
    assert needed in str(refused.value)
    assert refused.value.dialect == name
    assert refused.value.version
    assert refused.value.version in str(refused.value)
    assert refused.value.needed


@pytest.mark.parametrize(("name", "version", "banner"), ACCEPTED, ids=str)
def test_supported_versions_are_accepted(name: str, version: tuple[int, ...], banner: str) -> None:
    adapters()[name].inspection.judge(version, banner)


@pytest.mark.parametrize("operation", [sqlqueue.claim, sqlqueue.stats, sqlqueue.rescue])
def test_versions_are_rejected_before_a_statement_is_sent(operation: Any) -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    engine.dialect.server_version_info = (3, 34, 1)
    with Session(engine) as session, pytest.raises(UnsupportedDialectError, match=r"SQLite 3\.34\.1.*3\.35"):
        operation(session, Task)
    assert [statement for statement in sent if not statement.startswith("BEGIN")] == []
    engine.dispose()


class Firebird(DefaultDialect):
    name = "firebird"


def test_an_unknown_dialect_is_rejected() -> None:
    with pytest.raises(UnsupportedDialectError, match=r"'firebird'.*sqlqueue\.dialects") as unknown:
        adapter_for(Firebird())
    assert unknown.value.dialect == "firebird"


def test_a_session_of_an_unknown_dialect_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "firebird")
    with Session(engine) as session, pytest.raises(UnsupportedDialectError, match="'firebird'"):
        sqlqueue.claim(session, Task)
    engine.dispose()


def test_models_are_declared_whatever_the_dialect() -> None:
    class OwnBase(DeclarativeBase):
        pass

    class Thing(QueueMixin, OwnBase):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    assert str(utcnow())


def test_each_server_is_recognized(sync_db: Database) -> None:
    with sync_db.engine.connect() as connection:
        assert adapter_for(connection.dialect).name == sync_db.case.sync_driver.partition("+")[0]


def test_mariadb_behind_a_mysql_url(sync_db: Database) -> None:
    if not getattr(sync_db.engine.dialect, "is_mariadb", False):
        pytest.skip("answers to no other engine's URL")
    engine = create_engine(sync_db.engine.url.set(drivername="mysql+pymysql"))
    sync_db.insert(Task, [{"id": 1}, {"id": 2}])
    with Session(engine) as session:
        first = sqlqueue.claim(session, Task)
        second = sqlqueue.claim(session, Task, lease=None)
        sqlqueue.complete(session, [first, second])
        sqlqueue.enqueue(session, Task, [{"id": 2, "name": "again"}], on_conflict="replace")
        session.commit()
        assert engine.dialect.name == "mysql"
        assert adapter_for(engine.dialect).name == "mariadb"
        assert sqlqueue.stats(session, Task)["completed"] == 1
    engine.dispose()


def test_the_indexes_that_claims_name_are_there(sync_db: Database) -> None:
    names = {index["name"] for index in inspect(sync_db.engine).get_indexes("task")}
    assert names >= {"ix_task_claim", "ix_task_due"}


# -- an engine from outside --------------------------------------------------------------------------------------------

OUTSIDE = Path(__file__).parents[1] / "outside_adapter"


def _install(target: Path) -> None:
    """Install the package as an installer would, but without one, so that no network or build tool is needed."""
    import tomllib

    project = tomllib.loads((OUTSIDE / "pyproject.toml").read_text())["project"]
    (target / "sqlqueue_outside.py").write_text((OUTSIDE / "sqlqueue_outside.py").read_text())
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, root))), "PYTHONWARNINGS": "error"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


def test_an_engine_from_outside_carries_queues(tmp_path: Path) -> None:
    target = tmp_path / "site"
    target.mkdir()
    _install(target)
    done = _run(target, str(OUTSIDE / "use.py"), str(tmp_path / "outside.db"))
    assert (done.stdout, done.returncode) == ("outside 1 1\n", 0), done.stderr


def test_the_outside_adapter_needs_its_package(tmp_path: Path) -> None:
    assert "NoSuchModuleError" in _run(tmp_path, str(OUTSIDE / "use.py"), str(tmp_path / "outside.db")).stderr


@pytest.mark.timeout(600)
def test_the_suite_that_packages_import_passes_with_an_adapter_from_outside(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _install(site)
    pytest_ = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    )
    done = _run(site, *pytest_, f"--basetemp={tmp_path / 'databases'}", str(OUTSIDE / "conformance.py"))
    # the skipped test needs several writers
    assert re.search(r"^\d\d passed, 1 skipped in", done.stdout, re.MULTILINE), done.stdout + done.stderr
