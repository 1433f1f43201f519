"""A run of the proof, from the first task to the verdict."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import chain, cycle

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, SQLQueueError, Status

from ...dialects import adapter_for
from ..database import sessions
from ..errors import EvaluationError
from .faults import Faults
from .models import LEASE, Account, Receipt, Task
from .processes import WorkerProcesses
from .report import Promise, Proof
from .scenarios import SCENARIOS, Observed, Scenario
from .worker import WORK

_PATIENCE = 90.0
"""Seconds without progress after which the tasks that are left count as lost."""
Show = Callable[[str], None]


def proven(engine: Engine, duration: timedelta, workers: int, show: Show) -> Proof:
    """Inject faults for ``duration`` while running the scenarios, wait for all tasks, and return the observations."""
    if not hasattr(signal, "SIGSTOP"):
        raise EvaluationError("this operating system cannot suspend and resume processes: run it on Linux or macOS")
    with engine.connect() as connection:
        adapter_for(connection.dialect).server.verify(connection)
    Session, begun = sessions(engine), time.monotonic()
    with WorkerProcesses(engine.url) as processes, _Scenarios(Session, begun + duration.total_seconds()) as scenarios:
        show("starting workers")
        processes.start(workers)
        faults = Faults(processes, Session)
        scenarios.start()
        for _ in faults.inflict(lambda: time.monotonic() - begun >= duration.total_seconds()):
            show(_progress(time.monotonic() - begun, faults))
        scenarios.join()
        for left in _until_done(faults):
            show(f"waiting for {left} tasks")
        counts = processes.stop()
        died = len(processes.died)
    seconds = time.monotonic() - begun
    with Session() as session:
        promises = [*_tallied(session, faults.enqueued), _stayed(faults, died), *scenarios.promises()]
    return Proof(
        engine=adapter_for(engine.dialect).product.name,
        version=".".join(map(str, engine.dialect.server_version_info or ())),
        seconds=seconds,
        promises=promises,
        faults=faults.counts | {"conflicts": counts["retries"], "lost leases": counts["lost"]},
        recovery=faults.recovery,
    )


def _progress(seconds: float, faults: Faults) -> str:
    inflicted = ", ".join(f"{number} {kind}" for kind, number in sorted(faults.counts.items()))
    return f"{seconds:.0f} s: {faults.enqueued} tasks; workers {inflicted}"


def _until_done(faults: Faults) -> Iterator[int]:
    """Yield the number of remaining tasks, until none remain or there is no progress."""
    before, moved = -1, time.monotonic()
    while (left := faults.unfinished()) and time.monotonic() < moved + _PATIENCE:
        if left != before:
            before, moved = left, time.monotonic()
        yield left
        faults.look()
        time.sleep(0.2)


def _tallied(session: QueueSession, enqueued: int) -> Iterator[Promise]:
    completed = (
        session.scalar(
            select(func.count()).select_from(Task).where(Task.topic == WORK, Task.status == Status.COMPLETED)
        )
        or 0
    )
    yield Promise(
        promise="no task is lost", observed=enqueued, broken=enqueued - completed, observation="tasks enqueued"
    )
    receipts, tasks = session.execute(select(func.count(), func.count(Receipt.task_id.distinct()))).one()
    yield Promise(
        promise="no task has its effects twice",
        observed=tasks,
        broken=receipts - tasks,
        observation="tasks with effects",
    )
    of_work = select(Task.id).where(Task.topic == WORK)
    effects = session.scalar(select(func.count()).select_from(Receipt).where(Receipt.task_id.in_(of_work))) or 0
    balance = int(session.scalar(select(func.sum(Account.balance))) or 0)
    yield Promise(
        promise="effects and completion are one commit",
        observed=completed,
        broken=abs(2 * effects - balance) + abs(effects - completed),
        observation="tasks completed, compared with the sums that their handlers changed",
    )


def _stayed(faults: Faults, died: int) -> Promise:
    return Promise(
        promise="workers survive outages and conflicts",
        observed=sum(faults.counts.values()),
        broken=died,
        observation="faults, after which no worker ended by itself",
    )


class _Scenarios(threading.Thread):
    """Runs the scenarios in turn until the given time, each at least once."""

    def __init__(self, Session: sessionmaker[QueueSession], end: float) -> None:
        super().__init__(daemon=True)
        self._session, self._end = Session, end
        self._outcomes: dict[Scenario, list[Observed]] = {scenario: [] for scenario in SCENARIOS}
        self._left = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> _Scenarios:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def run(self) -> None:
        first: Sequence[Scenario] = SCENARIOS
        try:
            for scenario in chain(first, cycle(SCENARIOS)):
                if self._left.is_set() or (time.monotonic() > self._end and all(self._outcomes.values())):
                    return
                self._run(scenario)
        except BaseException as error:
            self._error = error

    def _run(self, scenario: Scenario) -> None:
        """Run a scenario to its end; repeat it if it lost a conflict."""
        for _ in range(20):
            try:
                self._outcomes[scenario].append(scenario.run(self._session))
                return
            except SQLQueueError:  # for example, two sessions got the same claim
                self._outcomes[scenario].append(Observed(1, 1))
                return
            except DBAPIError as error:
                if not self._passes(error):
                    raise
                time.sleep(LEASE.total_seconds() / 10)
        raise EvaluationError(
            f"conflicts with other transactions kept this scenario from finishing: {scenario.promise!r}"
        )

    def _passes(self, error: DBAPIError) -> bool:
        with self._session() as session:
            errors = adapter_for(session.get_bind().dialect).errors
        return errors.is_transient(error) or errors.is_outage(error)

    def promises(self) -> Iterator[Promise]:
        """Yield the sums of the observations; raises the error that ended the scenarios early."""
        if self._error is not None:
            raise self._error
        for scenario, outcomes in self._outcomes.items():
            sums: Counter[str] = Counter()
            for outcome in outcomes:
                sums.update(outcome._asdict())
            yield Promise(
                promise=scenario.promise,
                observed=sums["observed"],
                broken=sums["broken"],
                observation=scenario.observation,
            )
