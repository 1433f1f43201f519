"""The baseline of Python's sqlite3, without implicit transactions: a claim begins a write transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..counter import StatementCounter
from ..plan import Shape
from .driver import LEASE, DriverClient, Row

_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
_LATER = f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '+{LEASE} seconds')"
_RUNNING = f"status = 'running', available_at = {_LATER}, claim_token = 1"
_COMPLETED = f"status = 'completed', available_at = {_NOW}, finished_at = {_NOW}"


class Sqlite3(DriverClient):
    """A queue for SQLite that uses only sqlite3."""

    skips_locked = False
    placeholder = "?"
    completed = _COMPLETED

    def __init__(self, connection: Any, shape: Shape, counter: StatementCounter) -> None:
        super().__init__(connection, shape, counter)
        connection.isolation_level = None
        self.cursor.execute("PRAGMA busy_timeout = 30000")
        names = ", ".join(("payload",) if shape.makes_keys else ("id", "payload"))
        values = "?" if shape.makes_keys else "?, ?"
        self._insert = (
            f"INSERT INTO {shape.table} ({names}, available_at, created_at) VALUES ({values}, {_NOW}, {_NOW})"
        )

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        self._begin()
        return super().execute(statement, parameters)

    def _begin(self) -> None:
        if not self.connection.in_transaction:
            self.counter.statement()
            self.cursor.execute("BEGIN IMMEDIATE")

    def claim(self, limit: int) -> Sequence[Row]:
        return self._take(limit, _RUNNING)

    def consume(self, limit: int) -> Sequence[Row]:
        return self._take(limit, f"{_COMPLETED}, claim_token = 1")

    def _take(self, limit: int, assignments: str) -> Sequence[Row]:
        table = self.shape.table
        picked = f"SELECT id FROM {table} WHERE status = 'available' ORDER BY priority, available_at, id LIMIT ?"
        stamp = f"claimed_by = ?, claimed_at = {_NOW}, attempt = attempt + 1"
        returning = ", ".join(self.shape.columns)
        update = f"{self.update} SET {assignments}, {stamp} WHERE id IN ({picked}) RETURNING {returning}"
        rows: list[Row] = self.execute(update, (self.claimer, limit)).fetchall()
        return rows

    def add(self, payload: str) -> None:
        self.execute(self._insert, (*self.key(), payload))

    def insert(self, payloads: Sequence[str]) -> None:
        self._begin()
        self.counter.statement()
        self.cursor.executemany(self._insert, [(*self.key(), payload) for payload in payloads])
