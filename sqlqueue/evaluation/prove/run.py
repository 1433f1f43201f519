"""The command ``sqlqueue prove``: runs the scenarios, and reports what was observed of each promise."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import cycle
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, SQLQueueError, Status

from ...dialects import adapter_for
from ..support import EvaluationError, Url, exit_codes, output, progress, sessions
from .application import LEASE, WORK, Account, Receipt, Task, tables
from .scenarios import SCENARIOS, Faults, Observed, Scenario, WorkerProcesses

# -- the command `sqlqueue prove` -------------------------------------------------------------------------------------

Minutes = Annotated[float, typer.Option("--minutes", metavar="N", min=0, help="How long faults are injected.")]
Workers = Annotated[
    int, typer.Option("--workers", "-w", metavar="N", min=3, max=32, help="Number of worker processes.")
]
Drop = Annotated[bool, typer.Option("--drop", help="Replace the tables that an interrupted run left behind.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
_WIDE = 120
"""Width in characters if the output is not a terminal."""


def prove(*, url: Url, minutes: Minutes = 1, workers: Workers = 3, drop: Drop = False, as_json: AsJson = False) -> None:
    """Prove on your server that a queue keeps its promises when workers and connections fail.

        sqlqueue prove --url postgresql+psycopg://me@host/test

    Worker processes handle tasks, and meanwhile some are killed (SIGKILL), frozen for longer than their leases
    (SIGSTOP), or lose all of their connections. Their handlers deadlock, or time out waiting for locks. Other sessions
    attempt what must fail: to complete a task that another claim holds, to claim a task under a lease, to exceed a
    limit. Then everything is counted.

    The result is a verdict, and for each promise how often it was put to the test and how often it was broken.

    Tables named sqlqueue_prove_... are created and dropped, even after Ctrl-C; the command refuses to start if they
    exist, and touches no others. It keeps the server busy: use one that nothing else depends on.

    Exit status: 0 if every promise was kept; 1 if one was broken or never put to the test; 2 if the proof cannot run;
    130 if it was stopped.
    """
    console = Console(stderr=True, highlight=False)
    with exit_codes(console, "sqlqueue prove"), progress(console) as say, tables(url, drop=drop) as engine:
        report = proven(engine, timedelta(minutes=minutes), workers, say)
    if as_json:
        typer.echo(json.dumps(report.plain(), indent=2))
    else:
        show(output(_WIDE), report)
    raise typer.Exit(0 if report.is_ok else 1)


def show(console: Console, report: Proof) -> None:
    """Print the promises with their observations, the faults and the verdict."""
    table = Table("Promise", "", "Observed", "Broken", "What was observed")
    for index in (2, 3):
        table.columns[index].justify = "right"
    for each in report.promises:
        mark = "[green]kept[/]" if each.is_kept else "[bold red]BROKEN[/]" if each.broken else "[yellow]not seen[/]"
        table.add_row(each.promise, mark, f"{each.observed:,}", f"{each.broken:,}", each.observation)
    console.print(table)
    console.print(", ".join(f"{kind}: {number:,}" for kind, number in report.faults.items()))
    longest = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in report.recovery.items())
    console.print(f"The longest time until the tasks of a worker were taken over or done: {longest}.")
    verdict = "keeps its promises" if report.is_ok else "does NOT keep its promises"
    console.print(f"sqlqueue {verdict} on {report.engine} {report.version} ({report.seconds:.0f} s).")


# -- a run of the proof, from the first task to the verdict -----------------------------------------------------------

_PATIENCE = 90.0
"""Seconds without progress after which the tasks that are left count as lost."""
Show = Callable[[str], None]


def proven(engine: Engine, duration: timedelta, workers: int, show: Show) -> Proof:
    """Inject faults for ``duration`` while running the scenarios, wait for all tasks, and return the observations."""
    if not hasattr(signal, "SIGSTOP"):
        raise EvaluationError("this operating system cannot suspend and resume processes: run it on Linux or macOS")
    with engine.connect() as connection:
        adapter_for(connection.dialect).inspection.verify(connection)
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
        survived, told = sum(faults.counts.values()), "faults, after which no worker ended by itself"
        stayed = Promise("workers survive outages and conflicts", survived, died, told)
        promises = [*_tallied(session, faults.enqueued), stayed, *scenarios.promises()]
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
    done = select(func.count()).select_from(Task).where(Task.topic == WORK, Task.status == Status.COMPLETED)
    completed = session.scalar(done) or 0
    yield Promise("no task is lost", enqueued, enqueued - completed, "tasks enqueued")
    receipts, tasks = session.execute(select(func.count(), func.count(Receipt.task_id.distinct()))).one()
    yield Promise("no task has its effects twice", tasks, receipts - tasks, "tasks with effects")
    of_work = select(Task.id).where(Task.topic == WORK)
    effects = session.scalar(select(func.count()).select_from(Receipt).where(Receipt.task_id.in_(of_work))) or 0
    balance = int(session.scalar(select(func.sum(Account.balance))) or 0)
    broken = abs(2 * effects - balance) + abs(effects - completed)
    compared = "tasks completed, compared with the sums that their handlers changed"
    yield Promise("effects and completion are one commit", completed, broken, compared)


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
        try:
            for scenario in cycle(SCENARIOS):
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
            connections = adapter_for(session.get_bind().dialect).connections
        return connections.is_transient(error) or connections.is_outage(error)

    def promises(self) -> Iterator[Promise]:
        """Yield the sums of the observations; raises the error that ended the scenarios early."""
        if self._error is not None:
            raise self._error
        for scenario, outcomes in self._outcomes.items():
            observed, broken = sum(each.observed for each in outcomes), sum(each.broken for each in outcomes)
            yield Promise(scenario.promise, observed, broken, scenario.observation)


# -- the results of a proof: promises, and what was observed ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise of the queue, and how often it was put to the test."""

    promise: str
    observed: int
    """The number of observations."""
    broken: int
    """The number of observations that contradict the promise."""
    observation: str
    """A description of what was counted."""

    @property
    def is_kept(self) -> bool:
        """Whether it was observed, and never broken."""
        return self.observed > 0 and self.broken == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results of a run."""

    engine: str
    version: str
    seconds: float
    promises: Sequence[Promise]
    faults: Mapping[str, int]
    """Faults by kind."""
    recovery: Mapping[str, float]
    """By kind of fault, the longest time in seconds until the worker's tasks were held by others or done."""

    @property
    def is_ok(self) -> bool:
        """Whether all promises were observed and kept."""
        return all(promise.is_kept for promise in self.promises)

    def plain(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "engine": self.engine,
            "version": self.version,
            "ok": self.is_ok,
            "seconds": round(self.seconds, 1),
            "promises": [{**asdict(promise), "kept": promise.is_kept} for promise in self.promises],
            "faults": dict(self.faults),
            "recovery_seconds": {kind: round(seconds, 1) for kind, seconds in self.recovery.items()},
        }
