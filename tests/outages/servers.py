"""Servers that can be taken away and brought back: each in a container of its own, under one address throughout."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from tests.support.engines import EngineCase
from tests.support.servers import Unavailable, answering, contained, free_port, missing_driver


class FrailServer:
    """A server in a container of its own; commits survive everything that happens to it."""

    def __init__(self, case: EngineCase, stack: ExitStack) -> None:
        if reason := missing_driver(case):
            raise reason
        if case.container is None:
            raise Unavailable(f"{case.name} has no server")
        container = replace(case.container.durable, host_port=free_port())
        self.case = case
        self.server, self._container = contained(case, container, stack)
        self._engine = create_engine(self.server.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def restart(self) -> None:
        """Shut it down in order, and start it again."""
        self._container.restart(timeout=3)
        self._wait()

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """Kill it, as if its machine had lost power."""
        self._container.kill()
        try:
            yield
        finally:
            self._container.start()
            self._wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it: its connections stay open, and nothing is answered."""
        self._pause()
        try:
            yield
        finally:
            self._container.unpause()

    def _pause(self) -> None:
        """On a busy machine Docker may fail to do it at once."""
        for left in reversed(range(5)):
            try:
                self._container.pause()
                return
            except OSError:  # what the client raises is an OSError
                if not left:
                    raise
                time.sleep(0.5)

    @contextmanager
    def suffering(self, begin: Sequence[str], end: Sequence[str]) -> Iterator[None]:
        """Execute the administrator's statements, and undo them at the end."""
        url = self.server.url.set(username=self.case.administrator)
        engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in begin:
                connection.exec_driver_sql(statement)
            try:
                yield
            finally:
                for statement in end:
                    connection.exec_driver_sql(statement)

    def _wait(self) -> None:
        answering(self.server.url, self.server.origin, patience=30)

    def kill_connections(self) -> None:
        assert self.case.connections_sql is not None
        assert self.case.kill_sql is not None
        with self._engine.connect() as connection:
            for victim in connection.exec_driver_sql(self.case.connections_sql).scalars().all():
                with suppress(DBAPIError):  # it has ended by itself
                    connection.exec_driver_sql(self.case.kill_sql.format(connection=victim))
