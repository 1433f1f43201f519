"""One engine per case and mode for the whole run, on tables that are created once."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine

from tests.support import tables
from tests.support.engines import EngineCase
from tests.support.harness import Database, LoopThread
from tests.support.models import Base
from tests.support.servers import Servers


class Databases:
    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._loop = LoopThread()
        self._engines: dict[EngineCase, Engine] = {}
        self._cleaners: dict[EngineCase, Engine] = {}
        self._databases: dict[tuple[EngineCase, str], Database] = {}

    def get(self, case: EngineCase, mode: str) -> Database:
        if (case, mode) not in self._databases:
            self._databases[case, mode] = Database(
                case,
                self._servers.get(case).url,
                self._loop,
                engine=self._engine(case),
                is_async=mode == "async",
                pool_size=20,
                query_cache_size=5000,  # the tests use more statements than the default of 500 keeps
            )
        return self._databases[case, mode]

    def describe(self, case: EngineCase) -> str:
        server = self._servers.get(case)
        return f"{server.version} ({server.origin})"

    def empty(self, case: EngineCase) -> None:
        tables.empty(self._cleaners[case], case, Base.metadata)

    def dispose(self) -> None:
        for database in self._databases.values():
            database.dispose()
        for engine in (*self._engines.values(), *self._cleaners.values()):
            engine.dispose()
        self._loop.stop()

    def _engine(self, case: EngineCase) -> Engine:
        """The plain engine for checks and cleanup, separate from the sessions' pools."""
        if case not in self._engines:
            url = self._servers.get(case).url
            self._engines[case] = create_engine(url)
            # between two tests it sends what is needed, and neither begins nor resets transactions
            self._cleaners[case] = create_engine(url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None)
            tables.make(self._engines[case], Base.metadata)
        return self._engines[case]
