"""Measurements of how soon tasks are started, and of what an idle worker costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median, quantiles

from sqlalchemy import Engine, delete, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, utcnow
from sqlqueue.evaluation.support import ChildProcess

from .baselines import BASELINES
from .child import TaskStart, listener_process, worker_process
from .models import Probe

Progress = Callable[[str], None]
_AHEAD = timedelta(seconds=1)
_WARM = 20
"""Warm-up tasks, which open connections and compile statements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The delays of some tasks, in milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickup:
    """The result of a measurement with one worker."""

    notified: bool
    """Whether the worker listened for notifications, if the engine has them."""
    enqueued: Delays
    """Delays from the call of the commit that enqueued a task to the call of its handler, in another process."""
    scheduled: Delays
    """Delays from the scheduled time of a task to the call of its handler, by the database's clock."""
    by_hand: Delays | None
    """Like ``enqueued``, for a process that listens and claims using only the driver, if there is a baseline."""
    idle_statements: float
    """Statements per second while there is nothing to do."""


def measure_pickup(
    engine: Engine, sessions: sessionmaker[QueueSession], *, tasks: int, idle: float, notify: bool, say: Progress
) -> Pickup:
    """Measure a worker in another process; the tasks are rows of :class:`.Probe`, whose table must exist."""
    baseline = BASELINES.get(engine.driver)
    by_hand = _by_hand(engine, sessions, tasks, say) if notify and baseline and baseline.listens else None
    empty(sessions)
    with worker_process(engine.url, notify=notify) as worker:
        say("enqueueing one by one")
        enqueued = _enqueued(sessions, worker, tasks)
        say("scheduling")
        scheduled = _scheduled(sessions, worker, max(tasks // 10, 5))
        say(f"idling for {idle:.0f} s")
        return Pickup(
            notified=notify,
            enqueued=enqueued,
            scheduled=scheduled,
            by_hand=by_hand,
            idle_statements=_idle(worker, idle),
        )


def empty(sessions: sessionmaker[QueueSession]) -> None:
    """Delete all probes."""
    with sessions.begin() as session:
        session.execute(delete(Probe))


def _by_hand(engine: Engine, sessions: sessionmaker[QueueSession], tasks: int, say: Progress) -> Delays:
    empty(sessions)
    with listener_process(engine.url) as listener:
        say("enqueueing one by one, for a listener written by hand")
        return _enqueued(sessions, listener, tasks)


def _enqueued(sessions: sessionmaker[QueueSession], worker: ChildProcess, tasks: int) -> Delays:
    delays: list[float] = []
    for number in range(_WARM + tasks):
        time.sleep(random.uniform(0.005, 0.03))
        with sessions() as session:
            session.enqueue(Probe(id=number))
            session.flush()
            sent = time.monotonic()
            session.commit()
        begun: TaskStart = worker.receive()
        delays.append(begun.monotonic - sent)
    return delays_of(delays[_WARM:])


def _scheduled(sessions: sessionmaker[QueueSession], worker: ChildProcess, tasks: int) -> Delays:
    with sessions.begin() as session:
        asked = time.time()
        now = session.scalars(select(utcnow())).one()
        behind = (asked + time.time()) / 2 - now.timestamp()
        due = {-1 - n: now + _AHEAD + n * timedelta(milliseconds=150) for n in range(tasks)}
        session.enqueue(Probe, [{"id": key, "available_at": moment} for key, moment in due.items()])
    found: list[TaskStart] = [worker.receive() for _ in due]
    return delays_of([begun.wall - behind - due[begun.task].timestamp() for begun in found])


def _idle(worker: ChildProcess, seconds: float) -> float:
    time.sleep(1)
    before, begun = _statements(worker), time.monotonic()
    time.sleep(seconds)
    return (_statements(worker) - before) / (time.monotonic() - begun)


def _statements(worker: ChildProcess) -> int:
    worker.send("statements")
    count: int = worker.receive()
    return count


def delays_of(seconds: Sequence[float]) -> Delays:
    hundredths = quantiles(seconds, n=100, method="inclusive")
    return Delays(
        count=len(seconds),
        p50=round(median(seconds) * 1_000, 2),
        p95=round(hundredths[94] * 1_000, 2),
        p99=round(hundredths[98] * 1_000, 2),
        most=round(max(seconds) * 1_000, 2),
    )
