"""The reference environment in `alembic/`, on every engine and driver."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config, main
from alembic.util import CommandError
from sqlalchemy import URL, Column, MetaData, Table, make_url

from sqlqueue.diagnostics.drift import drift
from sqlqueue.evaluation.demo.application import Base
from sqlqueue.model.declaration import queues
from tests.migrations.definitions import definitions, table_names
from tests.support.harness import Database

pytestmark = pytest.mark.asyncio_everywhere

ROOT = Path(__file__).parents[2]
VARIABLE = "SQLQUEUE_DATABASE_URL"
NAMES = set(Base.metadata.tables)


def _config(url: URL | None, output: StringIO | None = None) -> Config:
    given = [] if url is None else [f"url={url.render_as_string(hide_password=False)}"]
    return Config(toml_file=ROOT / "pyproject.toml", cmd_opts=Namespace(x=given), output_buffer=output)


@pytest.fixture
def config(db: Database) -> Iterator[Config]:
    made = _config(db.url.set(drivername=db.case.async_driver) if db.is_async else db.url)
    yield made
    command.downgrade(made, "base")
    with db.engine.begin() as connection:
        Table("sqlqueue_demo_version", MetaData(), Column("version_num")).drop(connection)


def test_upgrade_downgrade_and_upgrade_again(db: Database, config: Config) -> None:
    command.upgrade(config, "head")
    command.check(config)
    by_migration = definitions(db, Base.metadata)
    with db.engine.connect() as connection:
        assert drift(connection, queues(Base.metadata)) == []
    command.downgrade(config, "base")
    assert not NAMES & table_names(db)
    Base.metadata.create_all(db.engine)
    assert definitions(db, Base.metadata) == by_migration
    Base.metadata.drop_all(db.engine)
    command.upgrade(config, "head")
    command.check(config)


def test_the_environment_writes_sql_scripts(sync_db: Database) -> None:
    output = StringIO()
    command.upgrade(_config(sync_db.url, output), "head", sql=True)
    assert output.getvalue().count("CREATE TABLE") == len(NAMES) + 1
    assert not NAMES & table_names(sync_db)


def test_scripts_for_sql_server_begin_with_what_filtered_indexes_need() -> None:
    output = StringIO()
    command.upgrade(_config(make_url("mssql+pyodbc://"), output), "head", sql=True)
    script = output.getvalue()
    assert "WHERE status" in script
    assert script.index("SET QUOTED_IDENTIFIER ON") < script.index("CREATE TABLE")


def test_the_command_takes_its_database_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(SystemExit):
        main(["check"])
    main(["upgrade", "head"])
    monkeypatch.setenv(VARIABLE, "nonsense")
    main(["-x", f"url={url}", "check"])  # it would exit


def test_a_missing_database_url_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(CommandError, match=rf"alembic -x url=.* or in {VARIABLE}"):
        command.upgrade(_config(None), "head")
