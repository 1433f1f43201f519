"""Measurements of contenders, which take turns at the same work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import Engine, delete, func, select

from sqlqueue import Status, utcnow
from sqlqueue.evaluation.support import EvaluationError, sessions

from .baselines import BASELINES
from .figures import ContenderKind, Entry, Figure, Round
from .models import CALL, Call
from .plan import Plan
from .processes import ProcessPool, Spent
from .workloads import MakeWorkload

Say: TypeAlias = Callable[[str], None]
_WARM = 300
"""Warm-up jobs, which open connections and compile and prepare statements."""

_RESOLUTION = 0.001
"""The resolution in seconds of the coarsest engine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to do some work: its name, its kind, and the function that creates it."""

    name: str
    kind: ContenderKind
    make: MakeWorkload
    model: type[Any] | None = None
    """The model of its jobs; that of the plan by default."""
    claims_late: bool = False
    """Whether it writes claims only with the completions, so that the rows do not tell when the work began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of work that several contenders do."""

    name: str
    jobs: int
    contenders: Sequence[Contender]


Measure: TypeAlias = Callable[["Contest", Contender, int, int], Round]
"""A function that measures one contender with numbers of jobs and processes."""


class Contest:
    """Measurements on one table, which is recreated for each contender."""

    def __init__(self, plan: Plan, engine: Engine, processes: ProcessPool, say: Say) -> None:
        self.plan = plan
        self.processes = processes
        self._engine = engine
        self._sessions = sessions(engine)
        self._model: Any = plan.model
        self._say = say
        self._baseline = BASELINES.get(engine.driver)

    def hold(self, forms: Sequence[Form], processes: Sequence[int], measure: Measure) -> list[Figure]:
        """Measure all contenders in every round, comparable ones one after the other, and return their figures."""
        entries = [
            (form, contender, Entry(form=form.name, name=contender.name, kind=contender.kind, processes=n, rounds=[]))
            for n in processes
            for form in forms
            for contender in form.contenders
        ]
        for number in range(1, self.plan.rounds + 1):
            for form, contender, entry in entries:
                self._say(
                    f"round {number} of {self.plan.rounds}, {entry.processes} process(es), {form.name}: {entry.name}"
                )
                entry.rounds.append(measure(self, contender, form.jobs, entry.processes))
        all_entries = [entry for _, _, entry in entries]
        return [entry.figure(all_entries) for entry in all_entries]

    def renew(self, model: type[Any] | None = None) -> None:
        """Recreate the table of ``model``, the plan's by default, so that contenders do not affect each other."""
        self._model = model or self.plan.model
        table = self._model.__table__
        table.drop(self._engine, checkfirst=True)
        table.create(self._engine)

    def fill(self, jobs: int) -> None:
        """Replace all rows with ``jobs`` new jobs in one transaction."""
        with self._sessions.begin() as session:
            session.execute(delete(self._model))
            row = {"task": CALL, "arguments": {}} if self._model is Call else {"payload": self.plan.text}
            session.enqueue(self._model, [row] * jobs, copy=bool(self._baseline and self._baseline.copies))
            if self._baseline and self._baseline.analyze:
                table = self._model.__tablename__
                session.connection().exec_driver_sql(self._baseline.analyze.format(table=table))

    def is_drained(self) -> bool:
        """Return whether all jobs are finished."""
        unfinished = (Status.AVAILABLE.value, Status.RUNNING.value)
        with self._sessions() as session:
            waiting = select(self._model.id).where(self._model.status.in_(unfinished)).limit(1)
            return session.scalar(waiting) is None

    def now(self) -> datetime:
        """Return the time of the database."""
        with self._sessions() as session:
            return session.execute(select(utcnow())).scalar_one()

    def took(self, jobs: int, since: datetime | None = None) -> float:
        """Return the seconds from the first claim, or ``since``, to the last completion, according to the times stored
        in the rows.

        Raises :class:`.EvaluationError` unless each of the ``jobs`` was done exactly once.
        """
        model = self._model
        moments = select(func.min(model.claimed_at), func.max(model.finished_at))
        done = select(func.count()).where(model.status == Status.COMPLETED.value, model.attempt == 1)
        with self._sessions() as session:
            first, last = session.execute(moments).one()
            count = session.scalar(done)
        if count != jobs:
            raise EvaluationError(f"{count} of {jobs} jobs were done exactly once")
        seconds: float = (last - (since or first)).total_seconds()
        return max(seconds, _RESOLUTION)

    def count(self) -> int:
        """Return the number of rows."""
        with self._sessions() as session:
            return session.scalar(select(func.count()).select_from(self._model)) or 0


def drain(contest: Contest, contender: Contender, jobs: int, processes: int) -> Round:
    """Measure how a contender claims and completes ``jobs``.

    Raises :class:`.EvaluationError` if one was not done exactly once.
    """
    contest.renew(contender.model)
    with contest.processes.prepared(contender.make, processes) as work:
        for some in (min(_WARM, jobs), jobs):
            contest.fill(some)
            since = contest.now() if contender.claims_late else None
            spent = work(some, contest.is_drained)
            seconds = contest.took(some, since)
    return _round(jobs, seconds, spent)


def enqueue(contest: Contest, contender: Contender, jobs: int, processes: int) -> Round:
    """Measure how a contender enqueues ``jobs``.  Raises :class:`.EvaluationError` if some are missing."""
    contest.renew()
    with contest.processes.prepared(contender.make, processes) as work:
        warm = min(_WARM, jobs)
        work(warm, lambda: True)
        spent = work(jobs, lambda: True)
    if (count := contest.count()) != warm + jobs:
        raise EvaluationError(f"{count} of {warm + jobs} jobs were enqueued")
    return _round(jobs, spent[0].seconds, spent)


def _round(jobs: int, seconds: float, spent: Sequence[Spent]) -> Round:
    return Round(
        jobs=jobs,
        seconds=round(seconds, 4),
        jobs_per_second=round(jobs / seconds, 1),
        cpu_ms_per_1000=round(sum(each.cpu for each in spent) * 1_000_000 / jobs, 1),
        statements_per_job=round(sum(each.statements for each in spent) / jobs, 3),
        commits_per_job=round(sum(each.commits for each in spent) / jobs, 3),
    )
