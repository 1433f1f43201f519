"""Measurements of the round trips between client and server that each operation takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from sqlalchemy import Engine

from sqlqueue.evaluation.support import ChildProcess, sessions

from .child import TaskStart, listener_process, worker_process
from .clients import Client, Clients
from .contest import Contest
from .counter import StatementCounter
from .figures import ContenderKind
from .models import Probe
from .pickup import empty
from .plan import Plan
from .processes import ProcessPool, process_pool
from .proxy import Proxy, proxy
from .workloads import MakeWorkload, Working, handle, with_session, without_session, writing

Say = Callable[[str], None]
_WARM = 10
"""Operations that open connections and prepare statements."""
_COUNTED = 30
_JOBS = 200
"""Jobs of a worker, whose queries for more work are part of the count."""
_HANDLERS: dict[str, Callable[..., None]] = {
    "handler(job)": without_session,
    "handler(session, job)": with_session,
    "handler(session, job) that inserts a row": writing,
}
_QUIET = 0.03
"""Seconds without a round trip after which a worker is waiting."""
_LONGEST = 1.0
"""Seconds to wait for such a pause, since a polling worker may query at any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrips:
    """The costs of an operation, as medians; those of a worker's job are averages."""

    operation: str
    name: str
    statements: float | None
    """``None`` where they are not counted."""
    round_trips: float
    milliseconds: float | None
    """The duration of the operation through the proxy; ``None`` for jobs of a worker, which runs several at a time."""


class _Sample(NamedTuple):
    statements: int
    round_trips: int
    seconds: float


class _Meter:
    """Samples by operation."""

    def __init__(self, through: Proxy, counter: StatementCounter) -> None:
        self._proxy = through
        self._counter = counter
        self._samples: dict[str, list[_Sample]] = {}

    @contextmanager
    def reading(self, operation: str) -> Iterator[None]:
        """Return a context manager that measures the operation within it."""
        statements, trips, begun = self._counter.statements, self._proxy.round_trips, time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        self._samples.setdefault(operation, []).append(
            _Sample(self._counter.statements - statements, self._proxy.round_trips - trips, seconds)
        )

    def results(self, name: str) -> list[RoundTrips]:
        """Return the medians without the warm-up."""
        return [
            RoundTrips(
                operation=operation,
                name=name,
                statements=median(each.statements for each in counted),
                round_trips=median(each.round_trips for each in counted),
                milliseconds=_milliseconds([each.seconds for each in counted]),
            )
            for operation, samples in self._samples.items()
            for counted in (samples[_WARM:],)
        ]


def measure_round_trips(
    engine: Engine,
    plan: Plan,
    *,
    delay: float,
    contenders: Sequence[tuple[str, ContenderKind, Clients]],
    listens: bool,
    say: Say,
) -> list[RoundTrips]:
    """Measure single operations of ``contenders`` and workers through a proxy with a ``delay`` in seconds.

    ``engine`` is connected to the server itself; its tables must exist.  ``listens``: whether the first contender can
    wait for notifications.
    """
    with proxy(engine.url, delay) as through:
        behind = replace(plan, url=through.url, processes=(1,))
        contest = Contest(behind, engine, ProcessPool([]), say)
        found: list[RoundTrips] = []
        for name, _, clients in contenders:
            say(f"single operations: {name}")
            found += _operations(contest, through, name, clients)
        for name, handler in _HANDLERS.items():
            say(f"worker, {name}")
            found.append(_job(contest, through, name, partial(Working, register=partial(handle, handler=handler))))
        say("pick-up")
        if listens:
            found.append(
                _pickup(engine, through, contenders[0][0], listener_process(through.url, counter=through.counter))
            )
        worker = worker_process(through.url, notify=True, counter=through.counter)
        return [*found, _pickup(engine, through, "sqlqueue worker", worker)]


def _operations(contest: Contest, through: Proxy, name: str, clients: Clients) -> list[RoundTrips]:
    counter = StatementCounter()
    meter = _Meter(through, counter)
    contest.renew()
    with clients(contest.plan, counter, 1) as (client,):
        for _ in range(_WARM + _COUNTED):
            _once(client, meter, contest.plan.text)
    return meter.results(name)


def _once(client: Client, meter: _Meter, text: str) -> None:
    with meter.reading("enqueue, commit"):
        client.add(text)
        client.commit()
    with meter.reading("claim, commit"):
        jobs = client.claim(1)
        client.commit()
    with meter.reading("complete, commit"):
        client.complete(jobs)
        client.commit()
    client.add(text)
    client.commit()
    with meter.reading("claim, complete, commit"):
        client.complete(client.claim(1))
        client.commit()


def _job(contest: Contest, through: Proxy, name: str, make: MakeWorkload) -> RoundTrips:
    contest.renew()
    with process_pool(contest.plan) as workers, workers.prepared(make, 1) as work:
        for jobs in (_WARM, _JOBS):
            before = through.round_trips
            (spent,) = work(jobs, _filled(contest, jobs))
            trips = through.round_trips - before
    return RoundTrips(
        operation="a job in a worker",
        name=name,
        statements=round(spent.statements / _JOBS, 2),
        round_trips=round(trips / _JOBS, 2),
        milliseconds=None,
    )


def _filled(contest: Contest, jobs: int) -> Callable[[], bool]:
    """Return a function that returns whether all jobs are done. Its first call, after counting has begun, adds them."""
    filling = iter([jobs])

    def is_done() -> bool:
        for count in filling:
            contest.fill(count)
        return contest.is_drained()

    return is_done


def _pickup(engine: Engine, through: Proxy, name: str, process: AbstractContextManager[ChildProcess]) -> RoundTrips:
    """Measure the round trips and the time between a commit, which does not go through the proxy, and the handler's
    start."""
    make, samples = sessions(engine), list[tuple[int, float]]()
    empty(make)
    with process as worker:
        for number in range(_WARM + _COUNTED):
            before = _quiet(through)
            with make() as session:
                session.enqueue(Probe(id=number))
                session.flush()
                sent = time.monotonic()
                session.commit()
            begun: TaskStart = worker.receive()
            samples.append((begun.round_trips - before, begun.monotonic - sent))
    counted = samples[_WARM:]
    return RoundTrips(
        operation="pick-up, from the commit to the handler",
        name=name,
        statements=None,
        round_trips=median(trips for trips, _ in counted),
        milliseconds=_milliseconds([seconds for _, seconds in counted]),
    )


def _quiet(through: Proxy) -> int:
    """Wait until there are no round trips for a while, and return their number."""
    before, deadline = -1, time.monotonic() + _LONGEST
    while (now := through.round_trips) != before and time.monotonic() < deadline:
        before = now
        time.sleep(_QUIET)
    return now


def _milliseconds(seconds: Sequence[float]) -> float:
    return round(median(seconds) * 1_000, 2)
