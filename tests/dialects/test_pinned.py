"""Every statement, as text: no statement changes unnoticed, and no lock clause disappears. After an intended change,
run `SQLQUEUE_PIN=1 pytest tests/dialects` and review the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sqlqueue.dialects import adapter_for
from tests.dialects.catalog import statements
from tests.dialects.recorder import recording_engine

PINNED = Path(__file__).parent / "pinned"
ENGINES = {
    "postgresql": ("postgresql+psycopg://", (12,)),
    "mysql": ("mysql+pymysql://", (8, 0, 2)),
    "mariadb": ("mariadb+pymysql://", (10, 6)),
    "mssql": ("mssql+pyodbc://", (13,)),
    "oracle": ("oracle+oracledb://", (12, 2)),
    "sqlite": ("sqlite://", (3, 35)),
    "cockroachdb": ("cockroachdb+psycopg://", (24, 2, 3)),
}
"""The URL and the oldest supported version."""
NEWEST = {"mysql": (9, 7), "oracle": (23, 26)}
"""A version that gets some statements of its own, which are pinned as well."""


@pytest.mark.parametrize("name", ENGINES)
def test_statements_are_as_pinned(name: str) -> None:
    if name == "cockroachdb":
        pytest.importorskip("sqlalchemy_cockroachdb")
    url, oldest = ENGINES[name]
    engine, log = recording_engine(url, oldest)
    assert adapter_for(engine.dialect).inspection.product.minimum == oldest
    found = statements(engine, log)
    if name in NEWEST:
        known = {*found.values()}
        newer = statements(*recording_engine(url, NEWEST[name])).items()
        found |= {f"{key} (new)": statement for key, statement in newer if statement not in known}
    path = PINNED / f"{name}.json"
    if os.environ.get("SQLQUEUE_PIN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(path.read_text())
