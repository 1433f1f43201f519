"""Calls handlers in child processes."""

from __future__ import annotations

from contextlib import nullcontext

from ..._support.errors import ProcessDiedError
from ...dialects.base import Adapter
from ...operations.upkeep import too_many_crashes
from ..database.base import Database
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.outcomes import Ended, Outcome
from ..reporting.reports import Reports
from .children import BlamelessError, Children
from .executor import Executor


class IsolatedExecutor(Executor):
    """Runs each job in a child process, which commits a handler's writes and the completion itself."""

    def __init__(
        self, handler: Handler, database: Database, adapter: Adapter, reports: Reports, children: Children
    ) -> None:
        super().__init__(handler, database, adapter, reports)
        self._children = children

    def perform(self, job: Job) -> Outcome | None:
        return self._perform(job)  # it begins when a child is ready

    def attempt(self, job: Job) -> Ended:
        ended: Ended | None = None
        try:
            with self.reports.running(job) or nullcontext():
                ended = self._children.run(job)
                if ended.error is not None:
                    raise ended.error
        except BaseException as error:
            ended = ended or self._raised(job, error)
        if job.is_lost and not job.settling:  # just when the child had ended
            ended = Ended(None)
        job.end()
        return ended

    def judge(self, job: Job, error: BaseException) -> Outcome | None:
        if isinstance(error, BlamelessError) and not job.is_lost and self.may_return(job):
            return self.uncounted(job, error)
        if isinstance(error, ProcessDiedError) and not job.is_lost:
            if job.crashes >= self.handler.spec.options.max_crashes:
                return Outcome("crashed", too_many_crashes(job.crashes, str(error)))
            return Outcome("suspected", str(error))
        return super().judge(job, error)
