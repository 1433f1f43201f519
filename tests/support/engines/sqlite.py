"""SQLite, in a temporary file."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

from tests.support.engines.case import EngineCase


def _sqlite(directory: Path) -> str:
    path = directory / "sqlqueue.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return f"sqlite:///{path}?timeout=60"  # seconds that a writer waits for another writer, generous for busy machines


SQLITE = EngineCase(
    name="sqlite",
    odd_times=("'0'", "5", "'soon'", "''", "'2020-99-99'"),
    statements_row="on SQLite",
    partial_indexes=True,
    expression_indexes=True,
    trigger_sql="CREATE TRIGGER IF NOT EXISTS {name} AFTER UPDATE ON {table} BEGIN SELECT 1; END",
    sync_driver="sqlite+pysqlite",
    async_driver="sqlite+aiosqlite",
    other_drivers=("aiosqlite",),
    embedded=_sqlite,
    small=True,
    one_writer=True,
    foreign_keys_sql="PRAGMA foreign_keys = ON",
    impatient_sql="PRAGMA busy_timeout = 100",
    statistics="ANALYZE {table}",
    no_statistics="DELETE FROM sqlite_stat1 WHERE tbl = '{table}'",
    tells_steps=True,
    time_resolution=timedelta(milliseconds=1),
    adds_any_column=False,
    reflects_descending=False,
    read_only_sql="PRAGMA query_only = ON",
    misleading_index="status COLLATE NOCASE, subject, id, available_at",
    definition_sql="SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}'",
    insert_returns=True,
    file_requests=("VACUUM INTO '{path}'", "ATTACH '{path}' AS other", "ATTACH '{path}' || '' AS other"),
    odd_values={
        "0.5": 0.5,
        "9e999": "Infinity",
        "-9e999": "-Infinity",
        "x'00ff'": "00ff",
        "CAST(x'61ff' AS TEXT)": "a\ufffd",
    },
)
