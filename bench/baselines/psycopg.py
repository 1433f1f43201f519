"""The baseline of psycopg 3, which prepares repeated statements automatically."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ..counter import StatementCounter
from ..plan import Shape
from .driver import LEASE, DriverClient, Row

_RUNNING = f"status = 'running', available_at = statement_timestamp() + interval '{LEASE} seconds', claim_token = 1"
_COMPLETED = "status = 'completed', available_at = statement_timestamp(), finished_at = statement_timestamp()"
_CONSUMED = f"{_COMPLETED}, claim_token = 1"

_PATIENCE = 3.0
"""Seconds between polls without notifications."""


class Psycopg(DriverClient):
    """A queue for PostgreSQL that uses only psycopg."""

    copies = True
    listens = True
    analyze = "ANALYZE {table}"

    def __init__(self, connection: Any, shape: Shape, counter: StatementCounter) -> None:
        super().__init__(connection, shape, counter)
        names = ("payload",) if shape.makes_keys else ("id", "payload")
        now = ("statement_timestamp()",) * 2
        values = ", ".join((*("%s" for _ in names), *now))
        self._insert = f"INSERT INTO {shape.table} ({', '.join(names)}, available_at, created_at) VALUES ({values})"
        self._copy = f"COPY {shape.table} ({', '.join(names)}) FROM STDIN"
        self._claim, self._consume = (self._claiming(assignments) for assignments in (_RUNNING, _CONSUMED))
        complete = f"UPDATE {shape.table} AS job SET {_COMPLETED}"
        self._complete_one = f"{complete} WHERE id = %s AND attempt = %s AND status = 'running'"
        key_type = "integer" if shape.makes_keys else "uuid"
        self._complete_many = (
            f"{complete} FROM unnest(%s::{key_type}[], %s::integer[]) AS done (id, attempt)"
            " WHERE job.id = done.id AND job.attempt = done.attempt AND job.status = 'running'"
        )

    def _claiming(self, assignments: str) -> str:
        returning = ", ".join(f"job.{name}" for name in self.shape.columns)
        return (
            f"WITH picked AS MATERIALIZED (SELECT id FROM {self.shape.table} WHERE status = 'available'"
            " ORDER BY priority, available_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)"
            f" UPDATE {self.shape.table} AS job SET {assignments},"
            " claimed_by = %s, claimed_at = statement_timestamp(), attempt = attempt + 1"
            f" FROM picked WHERE job.id = picked.id RETURNING {returning}"
        )

    def claim(self, limit: int) -> Sequence[Row]:
        rows: list[Row] = self.execute(self._claim, (limit, self.claimer)).fetchall()
        return rows

    def consume(self, limit: int) -> Sequence[Row]:
        rows: list[Row] = self.execute(self._consume, (limit, self.claimer)).fetchall()
        return rows

    def complete(self, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            self.execute(self._complete_one, rows[0][:2])
        else:
            self.execute(self._complete_many, ([row[0] for row in rows], [row[1] for row in rows]))
        self.expect(len(rows))

    def key(self) -> Sequence[Any]:
        return () if self.shape.makes_keys else (uuid.uuid4(),)

    def add(self, payload: str) -> None:
        self.execute(self._insert, (*self.key(), payload))

    def insert(self, payloads: Sequence[str]) -> None:
        self.counter.statement()
        self.cursor.executemany(self._insert, [(*self.key(), payload) for payload in payloads])

    def copy(self, payloads: Sequence[str]) -> None:
        self.counter.statement()
        with self.cursor.copy(self._copy) as copy:
            for payload in payloads:
                copy.write_row((*self.key(), payload))

    def news(self, channel: str) -> Iterator[None]:
        self.execute(f'LISTEN "{channel}"')
        self.commit()
        while True:
            yield
            for _ in self.connection.notifies(timeout=_PATIENCE, stop_after=1):
                pass
