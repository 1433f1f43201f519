"""Runs the requested measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, inspect

from sqlqueue.dialects import adapter_for
from sqlqueue.evaluation.support import EvaluationError, connect, reached, sessions

from .baselines import BASELINES
from .contest import Contest, Form, Measure, Say, drain, enqueue
from .facts import machine_facts
from .figures import Figure
from .forms import drains, enqueues, ways
from .growth import Growth, HeldSnapshot, measure_growth, measure_held_snapshot
from .keyed import Keyed, measure_keyed
from .models import Base, KeyKind
from .peers.measure import PeerPlan, PeerReport, measure_peers
from .pickup import Pickup, measure_pickup
from .plan import Plan
from .processes import process_pool
from .proxy import proxy
from .roundtrips import RoundTrips, measure_round_trips

STANDARD = ("enqueue", "drain", "pickup", "roundtrips")
SECTIONS = (*STANDARD, "growth", "keyed")
PEERS = "peers"
_AMID = 2_000
"""Jobs drained from each queue of the measurements of growth and of keys."""
_LEAST_DELAY = 1.0
"""Milliseconds in each direction when round trips are counted, see :mod:`.proxy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the command."""

    sections: tuple[str, ...]
    processes: tuple[int, ...]
    jobs: int
    rounds: int
    threads: int
    batch: int
    work: str
    """A part of the names of the kinds of work that the drain measurement is restricted to; empty for all."""
    payload: int
    key: KeyKind
    tasks: int
    idle: float
    sizes: tuple[int, ...]
    delay: float
    """Milliseconds that a proxy adds in each direction; 0 for no proxy."""
    environments: Path | None
    """The directory for the environments of other libraries; ``None`` for a temporary one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The results of the growth measurement."""

    amid: list[Growth]
    """The results by size."""
    under_snapshot: HeldSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """All results; a section is ``None`` if it was not requested."""

    machine: dict[str, Any]
    wanted: BenchOptions
    baseline: str | None
    """The driver's name if it has a baseline, else ``None``."""
    enqueue: list[Figure] | None
    drain: list[Figure] | None
    pickup: list[Pickup] | None
    roundtrips: list[RoundTrips] | None
    """``None`` also on engines without a network."""
    growth: Grown | None
    keyed: list[Keyed] | None
    peers: PeerReport | None

    def plain(self) -> dict[str, Any]:
        """Return the report as values for JSON, without sections that were not requested."""
        return {name: value for name, value in asdict(self).items() if value is not None or name == "baseline"}


def measured(url: str, wanted: BenchOptions, *, say: Say) -> BenchReport:
    """Measure the requested sections, drop all tables even after errors, and return the report.

    Raises :class:`.EvaluationError` if it cannot measure; database errors are raised unchanged.
    """
    with ExitStack() as stack:
        engine = reached(url)
        stack.callback(engine.dispose)
        adapter_for(engine.dialect)
        _refuse_present(engine)
        stack.callback(Base.metadata.drop_all, engine)
        Base.metadata.create_all(engine)
        slowed = stack.enter_context(_slowed(engine, wanted.delay))
        found = {
            # counting round trips uses a separate proxy
            name: _MEASURES[name](engine if name == "roundtrips" else slowed, wanted, say)
            for name in _MEASURES
            if name in wanted.sections
        }
        return BenchReport(
            machine=machine_facts(engine),
            wanted=wanted,
            baseline=engine.driver if engine.driver in BASELINES else None,
            enqueue=found.get("enqueue"),
            drain=found.get("drain"),
            pickup=found.get("pickup"),
            roundtrips=found.get("roundtrips"),
            growth=found.get("growth"),
            keyed=found.get("keyed"),
            peers=found.get(PEERS),
        )


@contextmanager
def _slowed(engine: Engine, delay: float) -> Iterator[Engine]:
    """Yield an engine for the same database with ``delay`` milliseconds of latency in each direction."""
    if not delay:
        yield engine
        return
    with proxy(engine.url, delay / 1_000) as through:
        slowed = connect(through.url)
        yield slowed
        slowed.dispose()


def _refuse_present(engine: Engine) -> None:
    present = [name for name in inspect(engine).get_table_names() if name.startswith("sqlqueue_bench_")]
    if present:
        raise EvaluationError(f"the table {present[0]} already exists: drop it if an earlier run left it behind")


def _plan(engine: Engine, wanted: BenchOptions, processes: tuple[int, ...]) -> Plan:
    return Plan(
        url=engine.url,
        key=wanted.key,
        payload=wanted.payload,
        jobs=wanted.jobs,
        rounds=wanted.rounds,
        processes=processes,
        threads=wanted.threads,
        batch=wanted.batch,
    )


def _contest(engine: Engine, plan: Plan, say: Say, forms: Sequence[Any], measure: Measure) -> list[Figure]:
    with process_pool(plan) as workers:
        return Contest(plan, engine, workers, say).hold(forms, plan.processes, measure)


def _enqueue(engine: Engine, wanted: BenchOptions, say: Say) -> list[Figure]:
    plan = _plan(engine, wanted, (1,))
    return _contest(engine, plan, lambda text: say(f"enqueue: {text}"), enqueues(plan, engine.driver), enqueue)


def _drain(engine: Engine, wanted: BenchOptions, say: Say) -> list[Figure]:
    plan = _plan(engine, wanted, wanted.processes)
    forms = _named(drains(plan, engine.driver), wanted.work)
    return _contest(engine, plan, lambda text: say(f"drain: {text}"), forms, drain)


def _named(forms: Sequence[Form], part: str) -> list[Form]:
    """Return the forms whose names contain ``part``; raise :class:`.EvaluationError` if there are none."""
    found = [form for form in forms if part in form.name]
    if not found:
        names = "; ".join(form.name for form in forms)
        raise EvaluationError(f"no kind of work has a name that contains {part!r}. The names are: {names}")
    return found


def _pickup(engine: Engine, wanted: BenchOptions, say: Say) -> list[Pickup]:
    listens = adapter_for(engine.dialect).connections.listener(engine.dialect.driver) is not None
    return [
        measure_pickup(engine, sessions(engine), tasks=wanted.tasks, idle=wanted.idle, notify=notify, say=say)
        for notify in ((True, False) if listens else (False,))
    ]


def _round_trips(engine: Engine, wanted: BenchOptions, say: Say) -> list[RoundTrips] | None:
    if not adapter_for(engine.dialect).connections.has_network:
        return None
    baseline = BASELINES.get(engine.driver)
    return measure_round_trips(
        engine,
        _plan(engine, wanted, (1,)),
        delay=max(wanted.delay, _LEAST_DELAY) / 1_000,
        contenders=ways(engine.driver),
        listens=bool(baseline and baseline.listens),
        say=lambda text: say(f"round trips: {text}"),
    )


def _growth(engine: Engine, wanted: BenchOptions, say: Say) -> Grown:
    make = sessions(engine)
    amid = measure_growth(engine, make, sizes=wanted.sizes, tasks=_AMID, rounds=wanted.rounds, say=say)
    return Grown(amid=amid, under_snapshot=measure_held_snapshot(engine, make, tasks=wanted.jobs, say=say))


def _keyed(engine: Engine, wanted: BenchOptions, say: Say) -> list[Keyed]:
    backlog = max(wanted.sizes)
    return measure_keyed(engine, sessions(engine), backlog=backlog, tasks=_AMID, rounds=wanted.rounds, say=say)


def _peers(engine: Engine, wanted: BenchOptions, say: Say) -> PeerReport:
    if engine.dialect.name != "postgresql":
        raise EvaluationError("other libraries are measured only on PostgreSQL")
    plan = PeerPlan(
        jobs=wanted.jobs,
        rounds=wanted.rounds,
        processes=wanted.processes,
        threads=wanted.threads,
        batch=wanted.batch,
        tasks=wanted.tasks,
    )
    return measure_peers(engine, plan, wanted.environments, say)


_MEASURES: dict[str, Callable[[Engine, BenchOptions, Say], Any]] = {
    "enqueue": _enqueue,
    "drain": _drain,
    "pickup": _pickup,
    "roundtrips": _round_trips,
    "growth": _growth,
    "keyed": _keyed,
    PEERS: _peers,
}
