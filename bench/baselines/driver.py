"""The base class of the baselines."""

from __future__ import annotations

import os
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..counter import StatementCounter
from ..models import Note
from ..plan import Shape

Row = tuple[Any, ...]
"""A claimed row: the key, the attempt, and more."""
LEASE = 300
"""The lease in seconds."""


class DriverClient:
    """A client with one connection of the driver."""

    skips_locked: ClassVar[bool] = True
    """Whether SQLAlchemy's ``with_for_update(skip_locked=True)`` has an effect on this engine."""
    placeholder: ClassVar[str] = "%s"
    completed: ClassVar[str]
    """The assignments of a completion."""
    copies: ClassVar[bool] = False
    listens: ClassVar[bool] = False
    analyze: ClassVar[str | None] = None
    """The statement that updates the planner's statistics of ``{table}``, in the transaction that filled it."""

    def __init__(self, connection: Any, shape: Shape, counter: StatementCounter) -> None:
        self.connection = connection
        self.shape = shape
        self.counter = counter
        self.claimer = f"{socket.gethostname()}:{os.getpid()}"
        self.cursor = connection.cursor()
        self.update = f"UPDATE {shape.table}"
        self._writing = f"INSERT INTO {Note.__tablename__} (text) VALUES ({self.placeholder})"

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Execute and count a statement, and return the cursor."""
        self.counter.statement()
        self.cursor.execute(statement, parameters)
        return self.cursor

    def claim(self, limit: int) -> Sequence[Row]:
        """Claim up to ``limit`` rows and return them."""
        raise NotImplementedError

    def consume(self, limit: int) -> Sequence[Row]:
        """Claim and complete rows at once, and return them."""
        raise NotImplementedError

    def complete(self, rows: Sequence[Row]) -> None:
        """Complete claimed rows.  Raises ``RuntimeError`` if claims were lost."""
        by_attempt: defaultdict[int, list[Any]] = defaultdict(list)
        for row in rows:
            by_attempt[row[1]].append(row[0])
        for attempt, keys in by_attempt.items():
            where = f"id IN ({self.places(keys)}) AND attempt = {self.placeholder} AND status = 'running'"
            self.execute(f"{self.update} SET {self.completed} WHERE {where}", (*keys, attempt))
            self.expect(len(keys))

    def write(self, text: str) -> None:
        """Insert a row of the application."""
        self.execute(self._writing, (text,))

    def write_all(self, texts: Sequence[str]) -> None:
        """Insert rows of the application; the counter counts one statement."""
        self.counter.statement()
        self.cursor.executemany(self._writing, [(text,) for text in texts])

    def any_left(self) -> bool:
        """Return whether any row is available."""
        found = self.execute(f"SELECT 1 FROM {self.shape.table} WHERE status = 'available' LIMIT 1").fetchall()
        self.commit()
        return bool(found)

    def add(self, payload: str) -> None:
        """Insert one row."""
        raise NotImplementedError

    def insert(self, payloads: Sequence[str]) -> None:
        """Insert rows in bulk."""
        raise NotImplementedError

    def copy(self, payloads: Sequence[str]) -> None:
        """Insert rows with COPY."""
        raise NotImplementedError

    def news(self, channel: str) -> Iterator[None]:
        """Listen, and yield when there may be something to claim."""
        raise NotImplementedError

    def commit(self) -> None:
        """Commit the transaction, and count it."""
        self.counter.commit()
        self.connection.commit()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def key(self) -> Sequence[Any]:
        """Return the leading values of a new row: its key, unless the server generates it."""
        return () if self.shape.makes_keys else (uuid.uuid4().hex,)

    def places(self, values: Sequence[Any]) -> str:
        """Return placeholders for ``values``."""
        return ", ".join([self.placeholder] * len(values))

    def expect(self, wanted: int) -> None:
        """Raise ``RuntimeError`` unless the last statement changed ``wanted`` rows, because claims were lost."""
        if self.cursor.rowcount != wanted:
            raise RuntimeError(f"{wanted - self.cursor.rowcount} claims are lost")
