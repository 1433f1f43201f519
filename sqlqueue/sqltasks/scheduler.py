"""The table of SQL tasks, the scheduler that executes them, and its configuration."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from sqlalchemy import URL, BigInteger, Boolean, Engine, Float, Identity, Integer, MetaData, create_engine, delete
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from .. import operations
from .._support.checks import at_once, count, database_url, duration
from .._support.errors import ArgumentError
from .._support.texts import logger_of
from ..dialects import adapter_for, long_text_type, text_type
from ..kinds import LimitMixin, RecurringMixin, SlotMixin
from ..operations import brief, spoken
from ..queue.options import QueueOptions, Status
from ..queue.schedules import parse
from ..queue.spec import spec_of
from ..sql import state
from ..transaction import claim_of
from ..worker import Worker, growing_pauses, handling_signals, passes
from .execution import RequestExecutor, executing_url

# -- the table of SQL tasks -------------------------------------------------------------------------------------------

LONGEST_USER = 128


def sql_task_options(slots: type[SlotMixin], **options: Any) -> QueueOptions:
    """Return options for a model that derives from :class:`SQLTaskMixin`: one attempt, one task of a queue at a time.

    ``options`` are other arguments of :class:`.QueueOptions`; ``limit`` is how many tasks of a queue run at once.
    """
    columns = {"limit_key": "queue", "schedule": "repeat", **options.pop("columns", {})}
    return QueueOptions(**{"slots": slots, "max_attempts": 1, "columns": columns, **options})


class SQLTaskMixin(RecurringMixin, LimitMixin):
    """A task that consists of SQL: a worker executes its ``request`` and stores the ``response``.

    ::

        class SQLSlot(SlotMixin, Base):
            __tablename__ = "sql_slot"

        class SQLTask(SQLTaskMixin, Base):
            __tablename__ = "sql_task"
            __queue__ = sql_task_options(SQLSlot)

    Any program can enqueue with ``INSERT INTO sql_task (request) VALUES ('...')``, optionally with an ``available_at``
    in UTC, before which it does not start, or a ``repeat``, an interval or schedule at which it runs again.  Register
    the model with a worker with :func:`handle_sql_tasks`.
    """

    __abstract__ = True

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True)
    request: Mapped[str] = mapped_column(long_text_type())
    """One statement, in the SQL of its database."""
    response: Mapped[str | None] = mapped_column(long_text_type())
    """The result of the last successful run, as JSON: ``columns`` (name and type), ``rows``, ``row_count`` and whether
    it was ``truncated``; values that JSON cannot represent are text."""
    timeout: Mapped[float | None] = mapped_column(Float)
    """Seconds after which the statement is stopped and rolled back; ``NULL``: the scheduler's limit."""
    run_as: Mapped[str | None] = mapped_column(text_type(LONGEST_USER))
    """The name of one of the scheduler's users; ``NULL``: the default user."""
    delete_when_done: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the row is deleted once it has succeeded, unless it is repeated."""


class SQLTaskModels(NamedTuple):
    """The models of the SQL tasks of one schema, and their metadata."""

    task: type[SQLTaskMixin]
    slot: type[SlotMixin]
    metadata: MetaData


def sql_task_models(schema: str | None = None, *, table: str = "sql_task") -> SQLTaskModels:
    """Return new models of the tables ``table`` and ``<table>_slot``, for use without an application's models."""

    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class SQLSlot(SlotMixin, Base):
        __tablename__ = f"{table}_slot"

    class SQLTask(SQLTaskMixin, Base):
        __tablename__ = table
        __queue__ = sql_task_options(SQLSlot)

    return SQLTaskModels(SQLTask, SQLSlot, Base.metadata)


# -- the configuration of a scheduler: its databases and their settings -----------------------------------------------

_DURATIONS = ("poll", "timeout")
_KINDS: Sequence[tuple[str, Any, str]] = (
    ("url", str, "a URL"),
    ("schemas", (tuple, list), "a list of schemas"),
    ("table", str, "the name of a table"),
    ("create", bool, "true or false"),
    ("execute_url", (str, NoneType), "a URL"),
    ("users", Mapping, "URLs by the names of users"),
    ("queues", Mapping, "limits by the names of queues"),
)
"""Fields, their types, and words for these.  Messages do not repeat a value, which may contain a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLTaskDatabase:
    """One database whose SQL tasks a scheduler executes.

    - ``url``: the database of the tasks.
    - ``schemas``: the schemas of the tasks, by default that of the connection.
    - ``table``: the name of their table, ``sql_task`` by default.
    - ``create``: whether to create missing tables; false by default.
    - ``execute_url``: the user and database of requests without ``run_as``, by default ``url``.
    - ``users``: URLs by the names that ``run_as`` can contain; none by default. Anyone who can insert a row can choose
      among these.
    - ``queues``: how many tasks of a queue run at once, by name; one for other queues.
    - ``concurrency``: how many tasks of a schema run at once, across its queues; 10 by default.
    - ``poll``: the longest time between two queries for work; 3 seconds by default.
    - ``timeout``: the longest time of a request; an hour by default.
    - ``response_limit``: the maximum size of a response in characters, a million by default; rows beyond it are read,
      one at a time, and left out.

    Raises :class:`.ArgumentError` for values of other types, for durations, ``concurrency`` and ``response_limit`` that
    are not positive, and for limits of queues above 10,000.  ``repr`` leaves out the URLs, which may contain passwords.
    """

    url: str = field(repr=False)
    schemas: tuple[str, ...] = ()
    table: str = "sql_task"
    create: bool = False
    execute_url: str | None = field(default=None, repr=False)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    queues: Mapping[str, int] = field(default_factory=dict)
    concurrency: int = 10
    poll: timedelta = timedelta(seconds=3)
    timeout: timedelta = timedelta(hours=1)
    response_limit: int = 1_000_000

    def __post_init__(self) -> None:
        for name, kind, wanted in _KINDS:
            if not isinstance(value := getattr(self, name), kind):
                raise ArgumentError(f"{name} is of type {type(value).__name__}: give {wanted}")
        for value in (*self.schemas, *self.users.values()):
            if not isinstance(value, str):
                raise ArgumentError(f"schemas or users contain a value of type {type(value).__name__}: give text")
        for name in _DURATIONS:
            duration(name, getattr(self, name))
        count("concurrency", self.concurrency)
        count("response_limit", self.response_limit)
        for name, limit in self.queues.items():
            at_once(f"queues: {name}", limit, least=0)


def read_config(path: str | Path) -> list[SQLTaskDatabase]:
    """Read a TOML file and return its databases: tables ``[[database]]`` with the fields of :class:`SQLTaskDatabase`.

    Durations are numbers of seconds.  Raises :class:`.ArgumentError` for an unusable file; its message names the
    problem.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"{path}: {error}") from error
    tables = found.pop("database", None)
    if found or not isinstance(tables, list) or not tables:
        raise ArgumentError(f"{path}: give one or more tables [[database]], and nothing else")
    return [_database(f"{path}: database {number}", table) for number, table in enumerate(tables, 1)]


def _database(where: str, table: dict[str, Any]) -> SQLTaskDatabase:
    known = {each.name for each in fields(SQLTaskDatabase)}
    unknown = sorted(set(table) - known)
    if unknown or "url" not in table:
        problem = f"unknown key {', '.join(unknown)}" if unknown else "url is missing"
        raise ArgumentError(f"{where}: {problem}; the keys are {', '.join(sorted(known))}")
    values = dict(table)
    try:
        values.update((name, timedelta(seconds=values[name])) for name in _DURATIONS if name in values)
        return SQLTaskDatabase(**values)
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(f"{where}: {error}") from error


# -- the scheduler: executes SQL tasks of several databases and schemas in one process --------------------------------

logger = logger_of("sqlqueue")


def handle_sql_tasks(
    worker: Worker,
    entity: type[SQLTaskMixin],
    url: str | URL,
    *,
    users: Mapping[str, str | URL] | None = None,
    concurrency: int = 10,
    timeout: timedelta = timedelta(hours=1),
    response_limit: int = 1_000_000,
) -> None:
    """Register a handler with ``worker`` that executes the requests of ``entity``.

    Anyone who can write to its table can then run SQL.

    Each request is executed on a new connection, in its own transaction, as the user of ``url``, or of the URL in
    ``users`` that its ``run_as`` names.  It is stopped after its ``timeout``, at most the one given here, regardless of
    its session settings.  Its response, its completion and the next run are then written in one commit.  If the worker
    loses its database between the two commits, it executes the request again, and so it does, ten times at most, if the
    connection of the request cannot be opened or is lost.  A crash uses up an attempt, and so does a request that
    fails: it is discarded, with the database's code and message as its ``error``, unless the model allows more
    attempts.

    ``concurrency``: how many requests run at once; ``response_limit``: the maximum characters of a response.
    Raises :class:`.ArgumentError` for URLs whose driver cannot execute requests.
    """
    executor = RequestExecutor(url, users or {}, timeout=timeout, limit=response_limit)

    @worker.handler(entity, concurrency=concurrency)
    def execute_request(session: Session, task: SQLTaskMixin) -> None:
        repeat = getattr(task, entity.__queue_spec__.attributes["schedule"])
        if repeat is not None:
            parse(repeat)  # raises for a bad schedule before anything is executed
        task.response = executor.execute(task.request, user=task.run_as, timeout=task.timeout)
        if task.delete_when_done:
            _complete_and_delete(session, task)


def _complete_and_delete(session: Session, task: SQLTaskMixin) -> None:
    spec, claim = spec_of(type(task)), claim_of(task)
    operations.complete(session, task)
    done = spec["status"] == state(Status.COMPLETED)  # a repeated task is scheduled again
    session.execute(delete(spec.table).where(spec.key(claim.identity), done), bind_arguments=spec.bind_arguments)


class SQLTaskScheduler:
    """Executes the SQL tasks of ``databases`` until it is stopped.

    While a database cannot be reached, the scheduler keeps trying and serves the others.  Raises
    :class:`.ArgumentError` for URLs whose driver cannot be used.
    """

    def __init__(self, databases: Sequence[SQLTaskDatabase]) -> None:
        for database in databases:
            for url in (database.execute_url or database.url, *database.users.values()):
                executing_url(url)
            database_url(database.url)
        self._databases = databases
        self._workers: list[Worker] = []
        self._stopped = False

    def run(self) -> None:
        """Execute tasks in the calling thread until SIGTERM, SIGINT or :meth:`stop`; a second signal does not wait."""
        asyncio.run(self._serve_with_signals())

    def stop(self, *, at_once: bool = False) -> None:
        """Stop :meth:`run`, see :meth:`.Worker.stop`.  Thread-safe."""
        self._stopped = True
        for worker in tuple(self._workers):
            worker.stop(at_once=at_once)

    async def _serve_with_signals(self) -> None:
        with handling_signals(self.stop):
            async with asyncio.TaskGroup() as group:
                for database in self._databases:
                    group.create_task(self._serve(database))

    async def _serve(self, database: SQLTaskDatabase) -> None:
        engine = create_engine(database.url)
        try:
            workers = await self._prepared(database, engine)
            self._workers += workers
            if self._stopped:  # stopped in the meantime: a worker that is stopped before it starts ends at once
                self.stop()
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.serve())
        finally:
            engine.dispose()

    async def _prepared(self, database: SQLTaskDatabase, engine: Engine) -> list[Worker]:
        """Wait until a database can be reached, and return its workers; none if the scheduler is stopped first."""
        for pause in growing_pauses():
            if self._stopped:
                break
            try:
                return await asyncio.to_thread(_workers, database, engine)
            except DBAPIError as error:
                if not passes(error, adapter_for(engine.dialect)):
                    raise
                where, reason = engine.url.render_as_string(hide_password=True), brief(str(error.orig))
                logger.warning("cannot connect to %s, next try in %s: %s", where, spoken(pause), reason)
                await asyncio.sleep(pause.total_seconds())
        return []


def _workers(database: SQLTaskDatabase, engine: Engine) -> list[Worker]:
    """Create tables if configured, set the limits of queues, and return a worker for each schema."""
    workers = []
    for schema in database.schemas or (None,):
        models = sql_task_models(schema, table=database.table)
        if database.create:
            models.metadata.create_all(engine)
        sessions = sessionmaker(engine)
        with sessions.begin() as session:
            for queue, limit in database.queues.items():
                operations.set_limit(session, models.task, queue, limit)
        worker = Worker(sessions, poll=database.poll)
        handle_sql_tasks(
            worker,
            models.task,
            database.execute_url or database.url,
            users=database.users,
            concurrency=database.concurrency,
            timeout=database.timeout,
            response_limit=database.response_limit,
        )
        workers.append(worker)
    return workers
