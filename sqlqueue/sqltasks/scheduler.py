"""The scheduler: executes SQL tasks of several databases and schemas in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import URL, Engine, create_engine, delete
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from .. import operations
from .._support.logs import logger_of
from .._support.urls import database_url
from ..dialects import adapter_for
from ..operations.attempts import brief, spoken
from ..queue.schedules import parse
from ..queue.spec import spec_of
from ..queue.status import Status
from ..sql.states import state
from ..transaction.claims import claim_of
from ..worker import Worker
from ..worker.database.backoff import growing_pauses, passes
from ..worker.process.signals import handling_signals
from .config import SQLTaskDatabase
from .execution import RequestExecutor, Users
from .model import SQLTaskMixin, SQLTaskModels, sql_task_models

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
    executor = RequestExecutor(Users.of(url, users or {}), timeout=timeout, limit=response_limit)

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
            Users.of(database.execute_url or database.url, database.users)
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
        with handling_signals(self._signalled):
            async with asyncio.TaskGroup() as group:
                for database in self._databases:
                    group.create_task(self._serve(database))

    def _signalled(self) -> None:
        self._stopped = True
        for worker in self._workers:
            worker._signalled()

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
                return await asyncio.to_thread(_prepare, database, engine)
            except DBAPIError as error:
                if not passes(error, adapter_for(engine.dialect)):
                    raise
                where, reason = engine.url.render_as_string(hide_password=True), brief(str(error.orig))
                logger.warning("cannot connect to %s, next try in %s: %s", where, spoken(pause), reason)
                await asyncio.sleep(pause.total_seconds())
        return []


def _prepare(database: SQLTaskDatabase, engine: Engine) -> list[Worker]:
    """Create tables if configured, set the limits of queues, and return a worker for each schema."""
    return [
        _worker(database, engine, sql_task_models(schema, table=database.table))
        for schema in database.schemas or (None,)
    ]


def _worker(database: SQLTaskDatabase, engine: Engine, models: SQLTaskModels) -> Worker:
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
    return worker
