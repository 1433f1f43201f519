"""A revision generated on one engine, run on every other; and as an SQL script."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import NullPool, create_engine, make_url

from sqlqueue.alembic import MigrationOptions
from tests.migrations import plain
from tests.migrations.conftest import MakeProject, Revised
from tests.migrations.definitions import definitions, table_names
from tests.migrations.project import Project, statements
from tests.support.containers import Unavailable
from tests.support.databases import Databases
from tests.support.engines import SELECTED
from tests.support.harness import Database

pytestmark = pytest.mark.requires("keeps_collations")

METADATA = plain.Base.metadata
EVERYWHERE = MigrationOptions(engines=tuple(make_url(f"{case.sync_driver}://").get_dialect().name for case in SELECTED))


@pytest.fixture(params=[pytest.param(case, id=f"of-{case.name}") for case in SELECTED])
def origin(request: pytest.FixtureRequest, databases: Databases) -> Database:
    """The engine on which the revision is generated."""
    try:
        return databases.get(request.param, "sync")
    except Unavailable as reason:
        pytest.skip(f"{request.param.name}: {reason}")


_TRIED: set[tuple[Database, str]] = set()


def test_a_revision_upgrades_and_downgrades_on_another_engine(
    sync_db: Database, origin: Database, project: MakeProject, revised: Revised
) -> None:
    # each engine has its own default for the clock in UTC; the plugin makes the revision choose among them
    here = project(METADATA, directory=revised(origin, plugin=True, sqlqueue=EVERYWHERE))
    (revision,) = here.directory.glob("versions/*.py")
    tried = sync_db, re.sub("revision = .*", "", revision.read_text())
    if tried in _TRIED:
        return  # most engines generate the same text
    _TRIED.add(tried)
    here.upgrade()
    here.check()
    here.downgrade()
    assert not table_names(sync_db) & set(METADATA.tables)


def test_the_sql_script_creates_the_same_tables(sync_db: Database, project: MakeProject, revised: Revised) -> None:
    here = project(METADATA, directory=revised(sync_db))
    here.upgrade()
    migrated = definitions(sync_db, METADATA)
    here.drop()
    run(here, here.upgrade(sql=True))
    assert definitions(sync_db, METADATA) == migrated
    run(here, here.downgrade("head:base", sql=True))
    assert not table_names(sync_db) & set(METADATA.tables)


def run(project: Project, script: str) -> None:
    """Execute the statements of a script, one by one."""
    engine = create_engine(project.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements(script):
            connection.exec_driver_sql(statement)
