"""The baseline of PyMySQL, which sends many rows in one INSERT if its VALUES contain only parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..counter import StatementCounter
from ..plan import Shape
from .driver import LEASE, DriverClient, Row

_NOW = "utc_timestamp(6)"
_RUNNING = f"status = 'running', available_at = {_NOW} + INTERVAL {LEASE} SECOND, claim_token = 1"
_COMPLETED = f"status = 'completed', available_at = {_NOW}, finished_at = {_NOW}"


class PyMySQL(DriverClient):
    """A queue for MySQL and MariaDB that uses only PyMySQL."""

    completed = _COMPLETED

    def __init__(self, connection: Any, shape: Shape, counter: StatementCounter) -> None:
        super().__init__(connection, shape, counter)
        self.cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        names = ", ".join(("payload",) if shape.makes_keys else ("id", "payload"))
        values = "%s" if shape.makes_keys else "%s, %s"
        self._add = f"INSERT INTO {shape.table} ({names}, available_at, created_at) VALUES ({values}, {_NOW}, {_NOW})"
        self._insert = f"INSERT INTO {shape.table} ({names}, available_at, created_at) VALUES ({values}, %s, %s)"
        # InnoDB locks all rows that it reads before it sorts and filters them, so the indexes are forced
        self.update = f"UPDATE {shape.table} FORCE INDEX (PRIMARY)"
        self._pick = (
            f"SELECT {', '.join(shape.columns)} FROM {shape.table} FORCE INDEX ({shape.index})"
            " WHERE status = 'available' ORDER BY priority, available_at, id LIMIT %s FOR UPDATE SKIP LOCKED"
        )

    def claim(self, limit: int) -> Sequence[Row]:
        return self._take(limit, _RUNNING)

    def consume(self, limit: int) -> Sequence[Row]:
        return self._take(limit, f"{_COMPLETED}, claim_token = 1")

    def _take(self, limit: int, assignments: str) -> Sequence[Row]:
        picked = self.execute(self._pick, (limit,)).fetchall()
        if picked:
            stamp = f"claimed_by = %s, claimed_at = {_NOW}, attempt = attempt + 1"
            self.execute(
                f"{self.update} SET {assignments}, {stamp} WHERE id IN ({self.places(picked)})",
                (self.claimer, *(row[0] for row in picked)),
            )
        return [(key, attempt + 1, *rest) for key, attempt, *rest in picked]

    def add(self, payload: str) -> None:
        self.execute(self._add, (*self.key(), payload))

    def insert(self, payloads: Sequence[str]) -> None:
        (now,) = self.execute(f"SELECT {_NOW}").fetchone()
        self.counter.statement()
        self.cursor.executemany(self._insert, [(*self.key(), payload, now, now) for payload in payloads])
