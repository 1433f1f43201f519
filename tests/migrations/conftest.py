"""Alembic projects on the engines of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import MetaData

from tests.migrations import plain
from tests.migrations.jobs import Base
from tests.migrations.project import Project
from tests.support.harness import Database

MakeProject: TypeAlias = Callable[..., Project]
Revised: TypeAlias = Callable[..., Path]


@pytest.fixture
def project(sync_db: Database, tmp_path: Path) -> Iterator[MakeProject]:
    """`project(metadata, **fields of Project)`: a project on the engine of `sync_db`, removed when the test ends."""
    with ExitStack() as stack:

        def make(metadata: MetaData, **fields: Any) -> Project:
            made = Project(**{"directory": tmp_path / "alembic", "metadata": metadata, "url": sync_db.url, **fields})
            stack.callback(made.drop)
            return made

        yield make


@pytest.fixture(scope="session")
def revised(tmp_path_factory: pytest.TempPathFactory) -> Revised:
    """`revised(database, **options of context.configure)`: the revision of the plain models, generated once for each
    engine."""

    @cache
    def revise(db: Database, *, plugin: bool = False, **options: Any) -> Path:
        directory = tmp_path_factory.mktemp(f"{db.case.name}-", numbered=True)
        project = Project(directory=directory, metadata=plain.Base.metadata, url=db.url, plugin=plugin, options=options)
        project.revise()
        return directory

    return revise


@pytest.fixture
def migrated(project: MakeProject) -> Project:
    made = project(Base.metadata, plugin=True, version_table="plugin_version")
    made.create()
    return made
