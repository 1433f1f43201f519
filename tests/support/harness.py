"""The tests' interface to a database: the same blocking methods for sync and async sessions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import URL, Connection, Engine, Executable, create_engine, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from sqlqueue import AsyncQueueSession, QueueSession
from tests.support.engines import EngineCase

T = TypeVar("T")

SESSION_OPTIONS: Mapping[str, Any] = {"expire_on_commit": False}
ROWS_A_STATEMENT = 10_000
OBSERVED = ("before_cursor_execute", "after_cursor_execute", "commit")


class LoopThread:
    """An event loop in a separate thread, in which every coroutine of the tests runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tests-event-loop", daemon=True)
        self._thread.start()

    def run(self, awaitable: Awaitable[T], timeout: float = 60) -> T:
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _collected(found: AsyncIterator[T]) -> list[T]:
    return [each async for each in found]


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _Blocking(AbstractContextManager[Any]):
    """An async context manager, entered and left on the loop, whose body runs here."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[Any]) -> None:
        self._loop = loop
        self._manager = manager

    def __enter__(self) -> Any:
        return self._loop.run(self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._loop.run(self._manager.__aexit__(kind, error, traceback))


class Actor:
    """A session, sync or async, with the same blocking methods either way."""

    def __init__(self, session: Session | AsyncSession, loop: LoopThread) -> None:
        self.session = session
        self._loop = loop

    @property
    def sync_session(self) -> Session:
        return self.session.sync_session if isinstance(self.session, AsyncSession) else self.session

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function(session, ...)` with the sync session, where it may do I/O."""
        if isinstance(self.session, AsyncSession):
            return self._loop.run(self.session.run_sync(function, *args, **kwargs))
        return function(self.session, *args, **kwargs)

    def pass_to(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function(session, ...)` with the unwrapped session, and wait for the result."""
        return self._call(function, self.session, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.session, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        if isinstance(result, AbstractAsyncContextManager):
            return _Blocking(self._loop, result)
        if isinstance(result, AsyncIterator):
            return iter(self._loop.run(_collected(result)))
        return self._loop.run(result) if inspect.isawaitable(result) else result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Committed:
    """The methods of sessions; each call has a session and a transaction of its own, which it commits."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._db.begin() as actor:
                return getattr(actor, name)(*args, **kwargs)

        return call


class Database:
    """An engine in one mode, sync or async, with its sessions; everything that it opens is closed at the end of the
    test."""

    def __init__(
        self, case: EngineCase, url: URL, loop: LoopThread, *, engine: Engine, is_async: bool, **options: Any
    ) -> None:
        self.case = case
        self.url = url
        self.is_async = is_async
        self.engine = engine
        """Always sync, whatever the sessions are: for plain checks and DDL."""
        self.bind: Engine | AsyncEngine = _bind(case, url, is_async, options)
        """The engine of the sessions."""
        self.observers: dict[str, tuple[Callable[..., None], ...]] = dict.fromkeys(OBSERVED, ())
        """Functions that are called on these events of `bind`. They may be replaced while other threads use the engine;
        SQLAlchemy's own listeners may not, since its threads iterate over them."""
        for name in OBSERVED:
            event.listen(self.session_engine, name, partial(self._call_observers, name))
        self.committed = Committed(self)
        self._loop = loop
        self._actors: list[Actor] = []
        self._variants: list[Database] = []

    @property
    def session_engine(self) -> Engine:
        """The sync engine of the sessions, for event listeners."""
        return self.bind.sync_engine if isinstance(self.bind, AsyncEngine) else self.bind

    @property
    def plain_class(self) -> type[Session] | type[AsyncSession]:
        """The class of ordinary sessions, which have no methods for queues."""
        return AsyncSession if self.is_async else Session

    def sessions(self, **options: Any) -> sessionmaker[Any] | async_sessionmaker[Any]:
        """Return the sessionmaker for a worker; `class_` selects sessions of another kind."""
        if isinstance(self.bind, AsyncEngine):
            return async_sessionmaker(self.bind, **{"class_": AsyncQueueSession, **SESSION_OPTIONS, **options})
        return sessionmaker(self.bind, **{"class_": QueueSession, **SESSION_OPTIONS, **options})

    def session(self, **options: Any) -> Actor:
        actor = Actor(self.sessions(**options)(), self._loop)
        self._actors.append(actor)
        return actor

    @contextmanager
    def begin(self, **options: Any) -> Iterator[Actor]:
        with self.session(**options) as actor:
            yield actor
            actor.commit()

    def variant(
        self, *, url: URL | None = None, on_connect: str | Sequence[str] | None = None, **options: Any
    ) -> Database:
        """The same server through an engine with other options, also another address or driver, or whose connections
        start with statements."""
        url = url or self.url
        is_async = self.is_async or url.get_dialect().is_async
        variant = Database(self.case, url, self._loop, engine=self.engine, is_async=is_async, **options)
        statements = [on_connect] if isinstance(on_connect, str) else on_connect
        if statements:
            event.listen(variant.session_engine, "connect", partial(execute_on_connect, statements))
        self._variants.append(variant)
        return variant

    @cached_property
    def read_committed(self) -> Database:
        """The same server through an engine at READ COMMITTED, or SERIALIZABLE with one writer, for counts of what a
        call reads. It is kept, so that each statement is compiled once; its connections are not, since a server may
        keep the plans of earlier tests with them."""
        level = "SERIALIZABLE" if self.case.one_writer else "READ COMMITTED"
        options: dict[str, Any] = {"isolation_level": level, "query_cache_size": 5_000}
        return Database(self.case, self.url, self._loop, engine=self.engine, is_async=self.is_async, **options)

    def execute(self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Execute the statement without a session, and commit."""
        with self.engine.begin() as connection:
            connection.execute(statement, rows)

    def insert(self, model: type[DeclarativeBase], rows: Sequence[Mapping[str, Any]]) -> None:
        with self.engine.begin() as connection:
            moments = _moments(connection, model, rows[0]) if len(rows) > 1 else {}
            given = [{**moments, **row} for row in rows]
            for start in range(0, len(given), ROWS_A_STATEMENT):
                connection.execute(insert(model), given[start : start + ROWS_A_STATEMENT])

    def _call_observers(self, name: str, *arguments: Any) -> None:
        for observer in self.observers[name]:
            observer(*arguments)

    def end_test(self) -> None:
        while self._actors:
            self._actors.pop().close()
        if "read_committed" in self.__dict__:
            self.read_committed.dispose()
        while self._variants:
            self._variants.pop().dispose()

    def dispose(self) -> None:
        self.end_test()
        if isinstance(self.bind, AsyncEngine):
            self._loop.run(self.bind.dispose())
        else:
            self.bind.dispose()


def _bind(case: EngineCase, url: URL, is_async: bool, options: Mapping[str, Any]) -> Engine | AsyncEngine:
    if is_async:
        with_driver = url if url.get_dialect().is_async else url.set(drivername=case.async_driver)
        return create_async_engine(with_driver, **options)
    return create_engine(url, **options)


def _moments(connection: Connection, model: type[DeclarativeBase], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current values of SQL defaults: PyMySQL sends rows with SQL expressions one by one."""
    absent = [column for column in model.__table__.columns if column.key not in row and column.default is not None]
    called = {column.key: column.default.arg for column in absent if column.default.is_clause_element}
    return dict(zip(called, connection.execute(select(*called.values())).one(), strict=True)) if called else {}


def execute_on_connect(statements: Sequence[str], connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()
    connection.commit()  # PostgreSQL reverts a setting with the transaction that made it
