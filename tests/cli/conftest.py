"""A SQLite database with the tables of `tests.support.models`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.support.models import Base


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "empty.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def url(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{shutil.copy(empty, tmp_path / 'on_call.db')}"
    monkeypatch.setenv("SQLQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("COLUMNS", "120")
    return url
