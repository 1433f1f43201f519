"""Rounds in which all contenders take turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from sqlalchemy import URL, Engine, inspect, text

from sqlqueue.evaluation.support import EvaluationError

from .contenders import BASELINE, CONTENDERS, PeerContender, PeerError
from .environment import command_of
from .figures import ContenderResults, Drained, Latency, PeerFigure, drained, figure_of, latency
from .process import Script, script

Say: TypeAlias = Callable[[str], None]
_WARM = 20
"""Jobs that open connections and prepare statements."""
_LOOK = 0.05
_LONGEST = 30.0
"""Seconds after which a drain is stopped: by then, enough jobs are done to compute the rate."""
_PATIENCE = 60.0
"""The longest wait for workers to start the jobs, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """The size of the measurement."""

    jobs: int
    rounds: int
    processes: tuple[int, ...]
    threads: int
    batch: int
    tasks: int
    """The number of jobs that are enqueued one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """All figures, and the reasons why some contenders have none."""

    figures: list[PeerFigure]
    missing: dict[str, str]


def measure_peers(
    engine: Engine, plan: PeerPlan, directory: Path | None, say: Say, contenders: Sequence[PeerContender] = CONTENDERS
) -> PeerReport:
    """Measure all contenders that can be installed, in rounds.

    ``directory``: where their environments are created; by default a temporary directory.  Each contender has its own
    schema, which is dropped afterwards.  Raises :class:`.EvaluationError` if the schema exists already.
    """
    _refuse_present(engine, contenders)
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlqueue-bench-")))
        ready: dict[PeerContender, tuple[tuple[str, ...], ContenderResults]] = {}
        for each in contenders:
            say(f"installing {each.name}")
            with _reported(each, missing):
                ready[each] = command_of(each, place), ContenderResults(name=each.name)
        for number in range(1, plan.rounds + 1):
            for each, (command, results) in ready.items():
                if each.name not in missing:
                    say(f"round {number} of {plan.rounds}: {each.name}")
                    with _reported(each, missing), own_schema(engine, each.schema):
                        _Turn(engine, plan, each, command, results).take()
    found = [results for each, (_, results) in ready.items() if each.name not in missing]
    baseline = next((results for results in found if results.name == BASELINE), None)
    figures = [figure_of(results, baseline) for results in found]
    return PeerReport(figures=figures, missing=missing)


def _refuse_present(engine: Engine, contenders: Sequence[PeerContender]) -> None:
    if present := {each.schema for each in contenders}.intersection(inspect(engine).get_schema_names()):
        raise EvaluationError(f"the schema {min(present)} already exists: drop it if an earlier run left it behind")


@contextmanager
def _reported(contender: PeerContender, missing: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except PeerError as error:
        missing[contender.name] = str(error)


@contextmanager
def own_schema(engine: Engine, name: str) -> Iterator[None]:
    """Create a schema for the block, and drop it afterwards."""
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))


def within(url: URL, schema: str) -> str:
    """Return the URL for drivers, with ``schema`` as the search path."""
    own = url.set(drivername="postgresql").update_query_dict({"options": f"-csearch_path={schema}"})
    return own.render_as_string(hide_password=False)


class _Turn:
    """One contender in one round."""

    def __init__(
        self,
        engine: Engine,
        plan: PeerPlan,
        contender: PeerContender,
        command: Sequence[str],
        results: ContenderResults,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._contender = contender
        self._results = results
        self._command = command
        concurrency = plan.threads if contender.in_threads else plan.batch
        schema = contender.schema
        self._arguments = (schema, str(concurrency), contender.form)

    def take(self) -> None:
        """Measure all parts."""
        parts = self._contender.parts
        with self._process("client") as client:
            client.ask("install")
            self._results.version = client.about["version"]
            if "enqueue" in parts:
                taken = client.ask("enqueue", _WARM + self._plan.tasks)
                self._results.enqueue_p50.append(median(taken[_WARM:]) * 1_000)
            for processes in self._plan.processes:
                self._clear(client)
                self._results.drains.setdefault(processes, []).append(self._drain(client, processes))
            if "pickup" in parts:
                self._clear(client)
                self._results.pickups.append(self._pickup(client))

    def _process(self, role: str) -> Any:
        return script(*self._command, role, *self._arguments, url=within(self._engine.url, self._contender.schema))

    def _sql(self, statement: str) -> Any:
        with self._engine.begin() as connection:
            connection.execute(text(f"SET LOCAL search_path = {self._contender.schema}"))
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    def _clear(self, client: Script) -> None:
        self._sql(client.about["clear"])

    def _drain(self, client: Script, processes: int) -> Drained:
        client.ask("fill", self._plan.jobs)
        self._sql("ANALYZE")
        with ExitStack() as stack:
            workers = [stack.enter_context(self._process("worker")) for _ in range(processes)]
            for worker in workers:
                worker.tell("go")
            deadline = time.monotonic() + _LONGEST
            while not (is_done := self._sql(client.about["is_done"])) and time.monotonic() < deadline:
                time.sleep(_LOOK)
            reports = [worker.ask("report") for worker in workers]
        return drained(reports, self._plan.jobs, is_done=is_done)

    def _pickup(self, client: Script) -> Latency:
        with self._process("worker") as worker:
            worker.tell("go")
            client.ask("enqueue_within", 1, -1)
            _marks(worker, 1)
            sent = client.ask("enqueue_within", self._plan.tasks, 0)
            marks = _marks(worker, self._plan.tasks + 1)
        return latency(sent[_WARM // 2 :] if len(sent) > _WARM else sent, marks)


def _marks(worker: Script, count: int) -> list[tuple[int, float]]:
    """Wait until workers have called the given number of handlers, and return the times of the calls."""
    deadline = time.monotonic() + _PATIENCE
    while len(marks := worker.ask("report")["marks"]) < count:
        if time.monotonic() > deadline:
            raise PeerError(f"{len(marks)} of {count} jobs were started in {_PATIENCE:.0f} seconds")
        time.sleep(_LOOK)
    return [(number, moment) for number, moment in marks]
