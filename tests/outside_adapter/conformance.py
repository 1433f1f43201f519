"""The conformance suite that sqlqueue exports, run by the test in a separate process where the package is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from sqlqueue.testing.conformance import *  # noqa: F403  # as a package does it: whatever there is to be run


@pytest.fixture
def conformance_engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"outside:///{tmp_path / 'outside.db'}", connect_args={"timeout": 3})
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    assert type(engine.dialect).__module__ == "sqlqueue_outside", os.environ["PYTHONPATH"]
    yield engine
    engine.dispose()
