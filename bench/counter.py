"""Counts of statements and commits."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine, event


class StatementCounter:
    """A thread-safe count of statements and commits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.statements = self.commits = 0

    def statement(self, *_: Any) -> None:
        """Count a statement; takes the arguments of any event."""
        with self._lock:
            self.statements += 1

    def commit(self, *_: Any) -> None:
        """Count a commit; takes the arguments of any event."""
        with self._lock:
            self.commits += 1

    def watch(self, engine: Engine) -> Engine:
        """Count the statements and commits of ``engine``, and return it; an ``executemany`` is one statement."""
        event.listen(engine, "before_cursor_execute", self.statement)
        event.listen(engine, "commit", self.commit)
        return engine
