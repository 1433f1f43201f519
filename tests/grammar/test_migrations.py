"""The migration scripts for SQL Server and Oracle, up and down, match the grammar of their language."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects.oracle.base import OracleTypeCompiler

from sqlqueue import TopicMixin
from tests.grammar import ParserMissingError
from tests.grammar.test_grammar import CHECKS, unavailable
from tests.migrations import plain
from tests.migrations.project import Project, statements

pytestmark = pytest.mark.timeout(600)

DRIVERS = {"mssql": "mssql+pyodbc://", "oracle": "oracle+oracledb://"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with three revisions: all models, another model that is not a queue yet, and that model as a queue."""
    directory = tmp_path_factory.mktemp("alembic")
    here = Project(directory=directory, metadata=plain.Base.metadata, url=f"sqlite:///{directory}/any.db")
    for metadata in (plain.Base.metadata, plain.shipment().metadata, plain.shipment(TopicMixin).metadata):
        step = here.using(metadata)
        step.revise()
        step.upgrade()
    return here


@pytest.mark.parametrize("engine", list(DRIVERS))
@pytest.mark.parametrize("direction", ["up", "down"])
def test_script_is_accepted(project: Project, engine: str, direction: str) -> None:
    if (engine, direction) == ("oracle", "down") and not hasattr(OracleTypeCompiler, "visit_JSON"):
        pytest.skip("this SQLAlchemy has no JSON for Oracle, and what was reflected elsewhere has lost its variant")
    there = project.on(DRIVERS[engine])
    script = there.upgrade(sql=True) if direction == "up" else there.downgrade("head:base", sql=True)
    if (engine, direction) == ("oracle", "down"):
        script = script.replace(" BIGINT", " NUMBER(19)")  # as reflected by SQLite, which does not exist on Oracle
    try:
        verdicts = CHECKS[engine]({statement: statement for statement in statements(script)})
    except ParserMissingError as missing:
        unavailable(str(missing))
    assert len(verdicts) > len(plain.Base.metadata.tables)
    assert {statement: errors for statement, errors in verdicts.items() if errors} == {}
