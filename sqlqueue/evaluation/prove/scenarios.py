"""The scenarios, their faults, and the worker processes that the faults affect."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import URL, ColumnElement, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import Claim, ClaimLostError, QueueSession, Status, claim_of

from ..._support.processes import CONTEXT
from ...dialects import adapter_for
from ..support import ChildProcess, EvaluationError
from .application import ACCOUNTS, LEASE, LIMIT, WORK, Account, Receipt, Task, Visit, main

# -- the worker processes as their parent sees them -------------------------------------------------------------------


class WorkerProcess(ChildProcess):
    """A worker process, into which faults are injected."""

    def __init__(self, name: str, url: URL) -> None:
        super().__init__(name, main, url, name)
        self.is_frozen = False

    def freeze(self) -> None:
        """Suspend it for longer than a lease, as if its machine were suspended: its connections stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)
        self.is_frozen = True
        # a timer, because this process may itself be waiting for locks that the frozen one holds
        timer = threading.Timer(_FROZEN, self._thaw)
        timer.daemon = True
        timer.start()

    def _thaw(self) -> None:
        with suppress(OSError):  # it was killed at the end
            os.kill(self.process.pid, signal.SIGCONT)
        self.is_frozen = False

    def cut(self) -> None:
        """Shut down its connections to the server."""
        self.send("cut")

    def stop(self) -> Counter[str]:
        """Stop it, and return the counts of its worker; empty if it has died."""
        self.send("stop")
        counts: Any = None
        with suppress(EvaluationError):
            while not isinstance(counts, dict):  # a process that replaced another one has sent "ready" first
                counts = self.receive()
        self.join()
        return Counter(counts if isinstance(counts, dict) else {})


class WorkerProcesses:
    """Some worker processes.  Leaving the ``with`` block kills those that still run."""

    def __init__(self, url: URL) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        self._url = url
        self._started = 0
        self.died: list[str] = []
        """The names of processes that ended without being killed."""
        self.running: list[WorkerProcess] = []

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()

    def start(self, number: int) -> None:
        """Start ``number`` processes, and wait until they are ready.  Raises :class:`.EvaluationError` if one does not
        start."""
        for _ in range(number):
            self._add()
        for process in self.running:
            process.receive()

    def replace(self, process: WorkerProcess) -> None:
        """Start another process for one that was killed or has died."""
        self.running.remove(process)
        self._add()

    def replace_dead(self) -> None:
        """Record processes that ended without having been killed, and start others."""
        for process in [process for process in self.running if not process.process.is_alive()]:
            self.died.append(process.name)
            self.replace(process)

    def stop(self) -> Counter[str]:
        """Stop all of them, and return the sums of their counts."""
        return sum((process.stop() for process in self.running), Counter())

    def _add(self) -> None:
        self._started += 1
        self.running.append(WorkerProcess(f"worker {self._started}", self._url))


# -- injects faults into worker processes while there is work ---------------------------------------------------------

_EVERY = 0.7
"""Seconds between two faults."""
_FROZEN = 1.5 * LEASE.total_seconds()
_BACKLOG = 60
_TICK = 0.05
Claims = set[tuple[int, int | None]]
"""The keys and tokens of running tasks."""


class Faults:
    """Injects faults into worker processes, and records how long it takes until their tasks are recovered."""

    def __init__(self, workers: WorkerProcesses, sessions: sessionmaker[QueueSession]) -> None:
        self.counts: Counter[str] = Counter()
        self.enqueued = 0
        self.recovery: dict[str, float] = {}
        """The longest time in seconds, by kind of fault, until the affected worker's tasks were held by others or
        done."""
        self._workers = workers
        self._sessions = sessions
        self._held: list[tuple[str, float, Claims]] = []
        """The kind and time of each fault, and the affected worker's claims that still hold tasks."""

    def inflict(self, until: Callable[[], bool]) -> Iterator[None]:
        """Enqueue tasks and inject faults until ``until`` holds and each kind has occurred; yield between them."""
        kinds: dict[str, Callable[[WorkerProcess], None]] = {
            "frozen": WorkerProcess.freeze,
            "killed": self._kill,
            "cut off": WorkerProcess.cut,
        }
        # in a separate thread: waiting for the locks of a frozen worker must not delay the next fault
        with ThreadPoolExecutor(1, "locks") as pool:
            holding: Future[None] | None = None
            while not until() or len(self.counts) < len(kinds):
                if holding is None or holding.done():
                    holding = pool.submit(hold_locks, self._sessions)
                for kind, fault in kinds.items():
                    with suppress(DBAPIError):
                        self._enqueue()
                    self._look_for(_EVERY)
                    victim = random.choice([each for each in self._workers.running if not each.is_frozen])
                    fault(victim)
                    self._held.append((kind, time.monotonic(), self._claims(Task.claimed_by == victim.name)))
                    self.counts[kind] += 1
                    yield
            while any(each.is_frozen for each in self._workers.running):
                self._look_for(_TICK)

    def look(self) -> None:
        """Replace processes that died, and record which claims have recovered."""
        self._workers.replace_dead()
        if not self._held:
            return
        running, now = self._claims(), time.monotonic()
        for kind, begun, held in self._held:
            if not held & running:
                self.recovery[kind] = max(self.recovery.get(kind, 0.0), now - begun)
        self._held = [(kind, begun, held) for kind, begun, held in self._held if held & running]

    def _claims(self, *where: ColumnElement[bool]) -> Claims:
        running = select(Task.id, Task.claim_token).where(Task.topic == WORK, Task.status == Status.RUNNING, *where)
        with self._sessions() as session:
            return {(identity, token) for identity, token in session.execute(running)}

    def unfinished(self) -> int:
        """Return the number of tasks that are not done."""
        undone = select(func.count()).select_from(Task).where(Task.topic == WORK, Task.status != Status.COMPLETED)
        with self._sessions() as session:
            return session.scalar(undone) or 0

    def _look_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(_TICK)

    def _enqueue(self) -> None:
        number = _BACKLOG - self.unfinished()
        if number > 0:
            with self._sessions.begin() as session:
                session.enqueue(Task, [{"topic": WORK}] * number)
            self.enqueued += number

    def _kill(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._workers.replace(worker)


# -- scenarios, each of which tests one promise in this process while faults are injected into workers ----------------

_SHORT, _LONG = timedelta(milliseconds=300), timedelta(minutes=5)
_PATIENCE = 60.0
_HOLD = 1.5
_THREADS = 4
_VISITS = 12
QueueSessions = sessionmaker[QueueSession]
R = TypeVar("R")


class Observed(NamedTuple):
    """How often a scenario tested its promise, and how often the promise was broken."""

    observed: int
    broken: int


class Scenario(NamedTuple):
    """A scenario, the promise that it tests, and what it counts."""

    promise: str
    observation: str
    run: Callable[[QueueSessions], Observed]


def late(Session: QueueSessions) -> Observed:
    """Let a lease expire and another claim take the task over, then try to complete the task with the first claim."""
    (identity,) = _enqueue(Session, "late")
    with Session() as zombie, Session() as successor:
        claim = claim_of(_claimed(zombie, identity, lease=_SHORT))
        zombie.commit()
        held = claim_of(_claimed(successor, identity, lease=_LONG))
        successor.commit()
        zombie.add(Receipt(task_id=identity, worker="zombie"))
        refused = _is_refused(zombie, claim)
        if refused:
            _finish(successor, held, worker="successor")
    return Observed(1, int(not refused))


def _is_refused(session: QueueSession, claim: Claim) -> bool:
    try:
        session.complete(claim)
        session.commit()
    except ClaimLostError:
        session.rollback()
        return True
    return False


def leased(Session: QueueSessions) -> Observed:
    """Try to claim tasks that are under a lease."""
    topic = _topic("leased")
    (identity,) = _enqueue(Session, topic)
    with Session() as holder, Session() as other:
        task = _claimed(holder, identity, lease=_LONG)
        holder.commit()
        taken = [other.claim(Task, Task.id == identity), other.claim(Task, Task.topic == topic)]
        other.rollback()
        _finish(holder, claim_of(task), worker="holder")
    return Observed(len(taken), sum(task is not None for task in taken))


def cut(Session: QueueSessions) -> Observed:
    """End a connection on which a task was claimed, handled and completed, but not committed."""
    (identity,) = _enqueue(Session, "cut")
    with Session() as victim:
        task = _claimed(victim, identity, lease=_LONG)
        attempt = claim_of(task).attempt
        victim.add(Receipt(task_id=identity, worker="cut"))
        victim.complete(task)
        victim.flush()
        _end_connection(victim)
    with Session() as successor:
        again = _claimed(successor, identity, lease=_LONG)
        traces = successor.scalars(select(Receipt.id).where(Receipt.task_id == identity)).all()
        broken = bool(traces) or claim_of(again).attempt != attempt
        _finish(successor, claim_of(again), worker="successor")
    return Observed(1, int(broken))


def _end_connection(session: QueueSession) -> None:
    """End the connection on the server if the account may do so, and otherwise from the client."""
    connection = session.connection()
    try:
        interrupt = adapter_for(connection.dialect).connections.interruption(connection)
        if interrupt is not None:
            interrupt(True)
    except DBAPIError:  # the account may not
        pass
    session.invalidate()


def exclusive(Session: QueueSessions) -> Observed:
    """Claim from the same tasks in several threads until none is left."""
    topic = _topic("exclusive")
    identities = _enqueue(Session, topic, 40)

    def drain() -> list[int]:
        mine: list[int] = []
        with Session() as session:
            while tasks := session.claim_many(Task, Task.topic == topic, limit=3, lease=_LONG):
                mine += [task.id for task in tasks]
                _finish(session, *map(claim_of, tasks), worker="exclusive")
        return mine

    claimed = sorted(identity for mine in _at_once(drain) for identity in mine)
    return Observed(len(claimed), len(claimed) - len(set(claimed)) + len(set(identities) - set(claimed)))


def ordered(Session: QueueSessions) -> Observed:
    """Claim alternately in two sessions, which together must get all tasks in order."""
    topic, number = _topic("ordered"), 30
    with Session.begin() as session:
        session.add_all(Task(topic=topic, priority=random.randrange(5)) for _ in range(number))
    got: list[tuple[Any, ...]] = []
    with Session() as one, Session() as other:
        for session in (one, other) * 5:
            moments = {task.id: task.available_at for task in session.scalars(select(Task).where(Task.topic == topic))}
            session.rollback()
            tasks = session.claim_many(Task, Task.topic == topic, limit=3, lease=_LONG)
            got += [(task.priority, moments[task.id], task.id) for task in tasks]
            _finish(session, *map(claim_of, tasks), worker="ordered")
    return Observed(len(got), sum(a != b for a, b in zip(got, sorted(got), strict=True)) + number - len(got))


def limited(Session: QueueSessions) -> Observed:
    """Run tasks of one limited key in several threads."""
    with Session.begin() as session:
        session.add_all(Visit(limit_key="key") for _ in range(_VISITS))
    lock, running, exceeded, done = threading.Lock(), 0, 0, 0

    def work() -> None:
        nonlocal running, exceeded, done
        deadline = time.monotonic() + _PATIENCE
        while done < _VISITS and time.monotonic() < deadline:
            with Session() as session:
                visit = session.claim(Visit)
                session.commit()
                if visit is None:
                    time.sleep(0.02)
                    continue
                with lock:
                    running += 1
                    exceeded += running > LIMIT
                time.sleep(0.02)
                with lock:
                    running -= 1
                    done += 1
                session.complete(visit)
                session.commit()

    _at_once(work)
    return Observed(done, exceeded + _VISITS - done)


def hold_locks(Session: QueueSessions) -> None:
    """Lock a row that handlers change, for longer than they wait."""
    with suppress(DBAPIError), Session() as session:  # it may itself lose a conflict
        number = random.randint(1, ACCOUNTS)
        session.execute(update(Account).where(Account.id == number).values(balance=Account.balance))
        time.sleep(_HOLD)
        session.rollback()


SCENARIOS: Sequence[Scenario] = (
    Scenario("a claim that has lost its task cannot complete it", "late completions, rejected", late),
    Scenario("a lease keeps others out", "claims of tasks under a lease, without effect", leased),
    Scenario("a transaction that is cut off leaves no trace", "open transactions whose connection was ended", cut),
    Scenario("a task goes to one claimer", f"tasks claimed by {_THREADS} threads at the same time", exclusive),
    Scenario("tasks are claimed in order of priority and time", "tasks claimed in turns by two sessions", ordered),
    Scenario("a limit holds", f"tasks of a key with a limit of {LIMIT}, run by {_THREADS} threads", limited),
)


def _topic(name: str) -> str:
    """Return a new topic for this scenario, since a fault may have interrupted an earlier one."""
    return f"{name} {secrets.token_hex(4)}"


def _enqueue(Session: QueueSessions, topic: str, number: int = 1) -> list[int]:
    with Session.begin() as session:
        tasks = [Task(topic=topic) for _ in range(number)]
        session.add_all(tasks)
        session.flush()
        return [task.id for task in tasks]


def _claimed(session: QueueSession, identity: int, *, lease: timedelta) -> Task:
    """Claim a task as soon as it is free."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        task = session.claim(Task, Task.id == identity, lease=lease)
        if task is not None:
            return task
        session.rollback()
        time.sleep(0.05)
    raise TimeoutError(f"task {identity} was not free within {_PATIENCE:.0f} s")


def _finish(session: QueueSession, *claims: Claim, worker: str) -> None:
    """Complete tasks, and commit with a receipt for each."""
    session.add_all(Receipt(task_id=claim.identity[0], worker=worker) for claim in claims)
    session.complete(claims)
    session.commit()


def _at_once(work: Callable[[], R]) -> list[R]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return [future.result() for future in [pool.submit(work) for _ in range(_THREADS)]]
