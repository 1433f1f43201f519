"""The start of a run, before it claims anything: checks the schema and releases the tasks of processes that died."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..._support.texts import error_text
from ...diagnostics.check import unintended_tasks, verify_companions, verify_queues
from ...dialects import adapter_for
from ...operations.recording import brief
from ...operations.upkeep import Crash, recover
from ...queue.schedules import is_known_here, lacks_zones
from ...queue.spec import Finding, QueueSpec
from ..database.backoff import Backoff, passes, until_success
from ..database.deadlines import SHORTEST_MAINTENANCE, maintenance_limit
from ..fetching.context import WorkerContext
from ..handling.handlers import Handler, handled_specs
from ..reporting.reports import logger

LONGEST_SCHEMA_CHECK = timedelta(minutes=10)
"""The longest time that checking the schema of a queue may take.  The first try gets less, and each later one more."""


class Preparation:
    """The steps of one run before its first claim.  They are retried until the database responds."""

    def __init__(self, handlers: Sequence[Handler], context: WorkerContext, crashes: Iterable[Crash]) -> None:
        self._specs = handled_specs(handlers)
        self._locked = {handler.spec for handler in handlers if handler.mode == "lock"}
        self._context = context
        self._crashes = crashes
        """The deaths of earlier processes, whose tasks are to be released."""
        self._schema_within = SHORTEST_MAINTENANCE

    async def run(self) -> None:
        """Check the schema, start the child processes, and release the tasks of earlier processes.

        Raises :class:`.SchemaMismatchError` if the tables do not match the models, and
        :class:`.UnsupportedDialectError` if this server has no locks that ``mode="lock"`` can rely on.
        """
        await until_success(self._check_schema, self._backoff("check the schema"), self._passes)
        loop = asyncio.get_running_loop()
        children = self._context.children.values()
        await asyncio.gather(*[loop.run_in_executor(None, each.prepare) for each in children])
        for crash in self._crashes:
            await until_success(partial(self._recover, crash), self._backoff("release tasks"), self._passes)
        self._context.started.recovered()

    async def _check_schema(self) -> None:
        run, within = self._context.database.run, self._schema_within
        self._schema_within = min(2 * within, LONGEST_SCHEMA_CHECK)  # for the next try, if this one times out
        for spec in self._specs:
            await run(partial(_check_queue, spec=spec, needs_locks=spec in self._locked), within)
            await self._warn(spec, within)
        engine = self._context.database.engine
        for spec in {(engine(spec), spec.table.metadata): spec for spec in self._specs}.values():
            await run(partial(_check_companions, spec=spec), within)
        await self._context.paused.look()

    async def _warn(self, spec: QueueSpec, within: timedelta) -> None:
        """Log findings that do not keep the worker from starting, and nor does an error while they are looked for."""
        try:
            found = await self._context.database.run(partial(_unintended_tasks, spec=spec), within)
        except Exception as error:
            if self._passes(error):
                raise
            logger.warning("cannot check the rows of %s: %s", spec.table.fullname, brief(error_text(error)))
            return
        for finding in found:
            logger.warning("%s; %s", finding.message, finding.fix)

    async def _recover(self, crash: Crash) -> None:
        """Release the tasks of a process before anything is claimed: one that only a lock held could be claimed again
        at once."""
        for spec in self._specs:
            within = maintenance_limit(spec.options.lease)
            found = await self._context.database.run(partial(recover, spec=spec, crash=crash), within)
            self._context.reports.recovered(spec, found)

    def _backoff(self, what: str) -> Backoff:
        return Backoff(what, self._context.reports, *{self._context.adapter(spec) for spec in self._specs})

    def _passes(self, error: BaseException) -> bool:
        return any(passes(error, self._context.adapter(spec)) for spec in self._specs)


def _check_queue(session: Session, spec: QueueSpec, *, needs_locks: bool) -> None:
    """Check the schema of a queue.  ``needs_locks``: it has handlers of ``mode="lock"``."""
    connection = session.connection(spec.bind_arguments)
    if needs_locks:
        adapter_for(connection.dialect).server.check_locks(connection)
    verify_queues(connection, [spec])
    if spec.recurs and lacks_zones():  # is logged for each schedule, instead of when its task is claimed
        in_use = select(spec["schedule"]).where(spec["schedule"].is_not(None), spec["finished_at"].is_(None)).distinct()
        for schedule in connection.scalars(in_use):
            is_known_here(schedule)


def _unintended_tasks(session: Session, spec: QueueSpec) -> list[Finding]:
    return unintended_tasks(session.connection(spec.bind_arguments), spec)


def _check_companions(session: Session, spec: QueueSpec) -> None:
    verify_companions(session.connection(spec.bind_arguments), spec.table.metadata)
