"""Servers that can be stopped and restarted, each in its own container with a constant address."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from tests.support.containers import Unavailable, free_port
from tests.support.engines import EngineCase
from tests.support.servers import answering, contained


class FrailServer:
    """A server in its own container, whose commits survive all faults."""

    def __init__(self, case: EngineCase, stack: ExitStack) -> None:
        if reason := case.missing_driver:
            raise Unavailable(reason)
        if case.container is None:
            raise Unavailable(f"{case.name} has no server")
        container = replace(case.container.durable, host_port=free_port())
        self.case = case
        self.server, self._container = contained(case, container, stack)
        self._engine = create_engine(self.server.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def restart(self) -> None:
        """Shut the server down cleanly, and restart it."""
        self._container.restart(timeout=3)
        self._wait()

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """Kill the server, as if its machine had lost power."""
        self._container.kill()
        try:
            yield
        finally:
            self._container.start()
            self._wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server: its connections stay open, but it does not respond."""
        self._pause()
        try:
            yield
        finally:
            self._container.unpause()

    def _pause(self) -> None:
        """Pause the container; on a busy machine Docker may fail at first."""
        for left in reversed(range(5)):
            try:
                self._container.pause()
                return
            except OSError:  # errors of the client are OSErrors
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
                with suppress(DBAPIError):  # it has exited by itself
                    connection.exec_driver_sql(self.case.kill_sql.format(connection=victim))
