"""Transactions that alternate: their steps, and the execution of one interleaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent, greenlet
from sqlalchemy import Engine

from sqlqueue import ClaimLostError, QueueSession, claim_of
from sqlqueue.dialects.postgresql import PostgreSQLRows
from sqlqueue.dialects.statements import Rows
from tests.locking.engine import Line, engine_for
from tests.locking.server import Resource, Server, Transaction, Wait

Do = Callable[[QueueSession, list[Any]], Any]
"""An operation, called with a session and the tasks that it has claimed."""


@dataclass(frozen=True)
class Step:
    """One operation of a transaction."""

    name: str
    do: Do
    claims: bool = False
    limit: int = 1
    matches: Callable[[dict[str, Any]], bool] = lambda row: True
    """The rows that it is about."""
    never_waits: bool = False
    """Whether it must not wait, like claims."""
    keeps_to_its_rows: bool = False
    """Whether it must not keep locks on rows that it is not about."""
    settles: bool = False
    """Whether its commit ends the claims."""
    extends: bool = False
    """Whether it must extend the leases of all claims."""

    def __repr__(self) -> str:
        return self.name


COMMIT = Step("commit", lambda session, _: session.commit())
DEADLOCK = "deadlock"


class DeadlockError(Exception):
    """Ends a transaction, as the error of a server does."""


Script = Sequence[Step]


@dataclass(eq=False)
class Actor:
    """A session, and its position in its script."""

    name: str
    script: Script
    step: Step | None = None
    claimed: list[Any] = field(default_factory=list)
    wait: Wait | None = None
    has_waited: bool = False
    """Whether it has waited in this request."""
    began_to_wait: int = 0
    """The turn at which it began to wait."""

    def play(self, engine: Engine, interleaving: Interleaving) -> None:
        try:
            self._play(engine, interleaving)
        except DeadlockError:
            interleaving.checker.aborts(self)
        self.step = None

    def _play(self, engine: Engine, interleaving: Interleaving) -> None:
        with QueueSession(engine, expire_on_commit=False) as session:
            for step in self.script:
                self.step = step
                interleaving.checker.begins(self)
                try:
                    found, lost = step.do(session, self.claimed), False
                except ClaimLostError:
                    session.rollback()
                    found, lost = [], True
                shown = [_shown(task) for task in found] if step.claims else "lost" if lost else "done"
                interleaving.tell(f"{self.name}'s {step}: {shown}")
                self.claimed += found if step.claims else []
                interleaving.checker.ends(self, found, lost=lost)
                if lost or step.settles:
                    self.claimed.clear()


def _shown(task: Any) -> Any:
    """Return a description of a row that is the same on every server, where generated primary keys differ: the
    ``unique_key``, if there is one."""
    return getattr(task, "unique_key", None) or claim_of(task).identity


class Checker:
    """Is notified of each event, and raises an error for a violation."""

    def begins(self, actor: Actor) -> None: ...
    def ends(self, actor: Actor, found: Any, *, lost: bool) -> None: ...
    def waits(self, actor: Actor, resource: Resource, holders: list[str]) -> None: ...
    def aborts(self, actor: Actor) -> None: ...
    def hangs(self, actors: list[Actor]) -> bool:
        """Return whether a deadlock ends only the transaction that has completed it, as on a server."""
        return False


class Interleaving:
    """Scripts that alternate on some server."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.checker = Checker()
        self.actors = [Actor(chr(ord("A") + number), script) for number, script in enumerate(scripts)]
        self.trace: list[list[str]] = []
        """The events of each turn; their order within a turn is not known."""

    def tell(self, line: str) -> None:
        self.trace[-1].append(line)

    def run(self, turns: Iterator[int]) -> list[list[str]]:
        """Alternate as ``turns`` says, among transactions that can continue; after its end, run them one after another.
        Returns the trace."""
        # the model of PostgreSQL does not know lateral subqueries: claims of several keys lock by primary key
        with patch.object(PostgreSQLRows, "claim_lanes", Rows.claim_lanes):
            return self._run(turns)

    def _run(self, turns: Iterator[int]) -> list[list[str]]:
        while unfinished := [actor for actor in self.actors if self.is_alive(actor)]:
            able = [actor for actor in unfinished if not self.is_stuck(actor)]
            self.trace.append([])
            if able:
                self.go(able[next(turns, 0) % len(able)])
            if not able or DEADLOCK in self.trace[-1]:
                return [*self.trace[:-1], [DEADLOCK]]
            self.trace[-1].sort()
        return self.trace

    def is_alive(self, actor: Actor) -> bool:
        raise NotImplementedError

    def is_stuck(self, actor: Actor) -> bool:
        """Return whether it waits for a lock that another transaction holds."""
        raise NotImplementedError

    def go(self, actor: Actor) -> None:
        """Resume the transaction until its next pause."""
        raise NotImplementedError


class ModelInterleaving(Interleaving):
    """An interleaving on a model. ``finely``: the turn may pass to another transaction at each lock; otherwise only at
    each statement and each commit, as with :class:`.ServerInterleaving`. ``longest_first``: of several transactions
    that wait for the same one, that which has waited longest continues first; otherwise the last one does.
    """

    def __init__(
        self,
        model: type[Server],
        dialect: str,
        scripts: Sequence[Script],
        *,
        finely: bool = True,
        longest_first: bool = True,
    ) -> None:
        super().__init__(scripts)
        self._next = min if longest_first else max
        self.server = model(self._pause)
        self._finely = finely
        self._main = getcurrent()
        engine = engine_for(dialect, Line(self.server, lambda: self._current().name, self._pause_before_request))
        self._turns = {actor.name: greenlet(lambda each=actor: each.play(engine, self)) for actor in self.actors}

    def run(self, turns: Iterator[int]) -> list[list[str]]:
        try:
            return super().run(turns)
        finally:
            for each in self._turns.values():
                each.throw()  # end transactions that were interrupted by a violated guarantee

    def is_alive(self, actor: Actor) -> bool:
        return not self._turns[actor.name].dead

    def is_stuck(self, actor: Actor) -> bool:
        return bool(self._holders(actor))

    def go(self, actor: Actor) -> None:
        self._turns[actor.name].switch()
        while not self._finely and (freed := [each for each in self.actors if each.wait and not self._holders(each)]):
            # on other servers, they continue by themselves
            self._turns[self._next(freed, key=lambda each: each.began_to_wait).name].switch()

    def _holders(self, actor: Actor) -> list[str]:
        if actor.wait is None:
            return []
        mine = self.server.transaction(actor.name)
        return [other.name for other in self.server.locks.in_the_way(mine, *actor.wait)]

    def _current(self) -> Actor:
        (found,) = (actor for actor in self.actors if self._turns[actor.name] is getcurrent())
        return found

    def _pause_before_request(self) -> None:
        self._main.switch()
        self._current().has_waited = False

    def _pause(self, transaction: Transaction, wait: Wait | None) -> None:
        if wait is not None:
            self._wait(self._current(), wait)
        elif self._finely:
            self._main.switch()

    def _wait(self, actor: Actor, wait: Wait) -> None:
        actor.wait = wait
        if not actor.has_waited:
            self.tell(f"{actor.name}'s {actor.step}: waits")
            actor.began_to_wait = len(self.trace)
        actor.has_waited = True
        self.checker.waits(actor, wait[0], self._holders(actor))
        if self._waits_for_itself(actor):
            if self.checker.hangs([each for each in self.actors if each.wait]):
                actor.wait = None
                raise DeadlockError
            self.tell(DEADLOCK)
        self._main.switch()
        actor.wait = None

    def _waits_for_itself(self, actor: Actor) -> bool:
        reached, names = set[str](), self._holders(actor)
        while names:
            reached.update(names)
            ahead = (name for each in self.actors if each.name in names for name in self._holders(each))
            names = [name for name in ahead if name not in reached]
        return actor.name in reached
