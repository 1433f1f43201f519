"""Every statement, as text: no statement changes unnoticed, and no lock clause disappears. After an intended change,
run `SQLQUEUE_PIN=1 pytest tests/dialects` and review the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.dialects.catalog import statements
from tests.dialects.recorder import recording_engine

PINNED = Path(__file__).parent / "pinned"
ENGINES = {
    "postgresql": ("postgresql+psycopg://", (18, 0)),
    "mysql": ("mysql+pymysql://", (9, 7, 0)),
    "mariadb": ("mariadb+pymysql://", (11, 8, 0)),
    "mssql": ("mssql+pyodbc://", (16, 0, 0, 0)),
    "oracle": ("oracle+oracledb://", (23, 0, 0)),
    "sqlite": ("sqlite://", (3, 40, 0)),
    "cockroachdb": ("cockroachdb+psycopg://", (25, 2, 0)),
}


@pytest.mark.parametrize("name", ENGINES)
def test_statements_are_as_pinned(name: str) -> None:
    if name == "cockroachdb":
        pytest.importorskip("sqlalchemy_cockroachdb")
    found = statements(*recording_engine(*ENGINES[name]))
    path = PINNED / f"{name}.json"
    if os.environ.get("SQLQUEUE_PIN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(path.read_text())
