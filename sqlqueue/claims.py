"""The claim that an instance carries, and what becomes of it when transactions end."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.orm import InstanceState, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.util import identity_key

from .exc import ArgumentError, IllegalTransitionError, UnsettledClaimError
from .spec import Identity, spec_of

if TYPE_CHECKING:
    from .mixins import QueueMixin

_HOLD = "sqlqueue.claim"
_LEDGER = "sqlqueue.ledger"


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one task: what a worker holds.

    It can be pickled, and settled from another session, thread or process once the claim is committed.  It settles the
    row while that is running in the same ``attempt`` with the same ``token``.

    No two claims are equal.  ``identity`` and ``attempt`` alone can come again: an engine or an application gives the
    primary key of a deleted row to a new one, and a failover or a backup takes the database to an earlier state.

    An idempotency key must stay the same when a task is tried again, so neither ``attempt`` nor ``token`` belongs in
    one.  ``identity`` serves where no primary key is ever used twice, such as a UUID made by the application.
    """

    entity: type[QueueMixin]
    """The model of the task."""
    identity: Identity
    attempt: int
    """Which attempt at the row it is, from 1 on."""
    token: int = 0
    """Random, made anew for each call that claims; 0 where no claim with a lease wrote one to the row."""


_TOKENS = 2**63 - 1
"""What the signed integers of every engine can hold."""


def new_token() -> int:
    """A number that no other claim has, whichever process, host, clock or copy of the database it is made with."""
    return 1 + secrets.randbelow(_TOKENS)


class Hold(NamedTuple):
    """What an instance remembers of its claim."""

    claim: Claim
    locked_by: str | None = None
    """The claimer's name if the claim has written nothing yet (``lease=None``)."""
    settled: str | None = None
    """How it was settled, if it was."""


@dataclass(slots=True, eq=False)
class _Entry:
    """That what instances remember changed within ``transaction``, and what it was before."""

    transaction: SessionTransaction | None
    only_locks: bool
    """Whether some of them are claims that have written nothing yet."""
    before: list[tuple[InstanceState[Any], Hold | None]]

    def holds(self) -> Iterator[tuple[InstanceState[Any], Hold]]:
        for state, _ in self.before:
            hold: Hold | None = state.info.get(_HOLD)
            if hold is not None:
                yield state, hold


@dataclass(slots=True)
class Ledger:
    """What a session's present transaction has done to claims.

    A claim whose transaction is rolled back was never made: its attempt is given out again, to somebody else.  So the
    instance must forget it, and a claim that was settled in vain must come back.
    """

    begun: set[Engine] = field(default_factory=set)
    """The engines on which the transaction has begun."""
    guarded: set[Connection] = field(default_factory=set)
    """The connections whose commit asks for claims that only lock."""
    entries: list[_Entry] = field(default_factory=list)

    def remember(self, session: Session, holds: Sequence[tuple[InstanceState[Any], Hold]]) -> None:
        before: list[tuple[InstanceState[Any], Hold | None]] = []
        only_locks = False
        for state, hold in holds:
            info = state.info
            before.append((state, info.get(_HOLD)))
            info[_HOLD] = hold
            only_locks = only_locks or hold.locked_by is not None
        if before:
            self.entries.append(_Entry(innermost(session), only_locks, before))

    def wrote(self, session: Session, states: Iterable[InstanceState[Any]]) -> None:
        """The rows of ``states`` were written and what these hold stays the same: a rollback undoes the writing."""
        before = [(state, state.info.get(_HOLD)) for state in states]
        if before:
            self.entries.append(_Entry(innermost(session), False, before))

    def states(self) -> dict[Claim, InstanceState[Any]]:
        """The instances by the claims that they carry, of this transaction."""
        return {hold.claim: state for entry in self.entries for state, hold in entry.holds()}

    def locked(self, table: Table) -> list[Identity]:
        """The rows of ``table`` that are held by their locks alone."""
        return [claim.identity for claim in self.unsettled if spec_of(claim.entity).table is table]

    @property
    def unsettled(self) -> list[Claim]:
        """Claims that only lock, and would vanish with a commit."""
        holds = (hold for entry in self.entries if entry.only_locks for _, hold in entry.holds())
        return list({hold.claim: None for hold in holds if hold.locked_by and not hold.settled})

    def committed(self, ended: SessionTransaction | None) -> None:
        """What ``ended`` did is its parent's now, or lasting."""
        if ended is None or not ended.nested:
            self.entries.clear()
        for entry in self.entries:
            if entry.transaction is ended:
                entry.transaction = ended.parent  # type: ignore[union-attr]

    def ended(self, session: Session, transaction: SessionTransaction) -> None:
        """Undo what ``transaction`` has not committed: instances that are still of the session load their rows again.

        The session itself does so with what it has written by a flush, and with all else where everything is undone.
        """
        kept: list[_Entry] = []
        undone: list[_Entry] = []
        for entry in self.entries:
            (undone if transaction in lineage(entry.transaction) else kept).append(entry)
        for entry in reversed(undone):
            for state, before in entry.before:
                state.info[_HOLD] = before
                if state.session is session and state.persistent:
                    session.expire(state.obj())
        self.entries = kept
        if transaction.parent is None:
            self.begun.clear()
            self.guarded.clear()


def hold_of(task: object) -> Hold:
    """What ``task`` holds; :class:`.IllegalTransitionError` if it holds nothing."""
    spec_of(type(task))
    return _unsettled(instance_state(task).info.get(_HOLD), task)


def _unsettled(hold: Hold | None, task: object) -> Hold:
    if hold is not None and hold.settled is None:
        return hold
    reason = "was not claimed, or its claim was rolled back" if hold is None else f"is settled already: {hold.settled}"
    raise IllegalTransitionError(f"{task!r} {reason}. Only what a claim returned can be settled, and once", task=task)


def settle(session: Session, task: object, how: str) -> None:
    """``task`` holds nothing any more; what it shows of its row is out of date."""
    hold = hold_of(task)
    ledger_of(session).remember(session, [(instance_state(task), hold._replace(settled=how))])
    session.expire(task)


def is_unsettled(task: object) -> bool:
    hold: Hold | None = instance_state(task).info.get(_HOLD)
    return hold is not None and hold.settled is None


def is_settled(task: object) -> bool:
    hold: Hold | None = instance_state(task).info.get(_HOLD)
    return hold is not None and hold.settled is not None


def guard(session: Session, connection: Connection) -> None:
    """Let no commit of ``connection`` drop a claim that only locks, whichever way it comes about.

    ``before_commit`` says so first where it can.  It cannot where the outermost transaction is committed within an
    open savepoint, whose release it looks like.
    """
    ledger = ledger_of(session)
    if connection not in ledger.guarded:
        ledger.guarded.add(connection)
        event.listen(connection, "commit", lambda committing: _refuse_commit(session, committing))


def _refuse_commit(session: Session, connection: Connection) -> None:
    try:
        _refuse_unsettled(session)
    except UnsettledClaimError:
        # SQLAlchemy takes a transaction whose commit failed for ended, and sends no rollback: the connection would go
        # back to the pool with its locks and writes.
        connection.connection.rollback()
        raise


def _refuse_unsettled(session: Session) -> None:
    unsettled = ledger_of(session).unsettled
    if unsettled:
        raise UnsettledClaimError(unsettled)


def claim_of(task: object) -> Claim:
    """The claim that ``task`` carries.

    It is the one that was made, whatever a refresh or an expiry has shown of the row since.
    Raises :class:`.IllegalTransitionError` if the instance was never claimed, or its claim is settled.
    """
    return hold_of(task).claim


def claim_made(task: Any) -> Claim:
    """The claim that ``task`` came by just now, also where it was consumed and there is nothing to settle."""
    hold: Hold | None = instance_state(task).info.get(_HOLD)
    if hold is not None:
        return hold.claim
    spec = spec_of(type(task))
    return Claim(type(task), spec.identity_of(task), getattr(task, spec.attributes["attempt"]))


def carry(source: object, target: object) -> None:
    """Let another instance of the same row hold what ``source`` holds."""
    instance_state(target).info[_HOLD] = instance_state(source).info.get(_HOLD)


def ledger_of(session: Session) -> Ledger:
    ledger: Ledger = session.info.setdefault(_LEDGER, Ledger())
    return ledger


def innermost(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def lineage(transaction: SessionTransaction | None) -> Iterator[SessionTransaction]:
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    ledger_of(session).begun.add(connection.engine)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.entries and not session.in_nested_transaction():
        _refuse_unsettled(session)


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.entries:
        ledger.committed(innermost(session))


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and (transaction.nested or transaction.parent is None):  # and not that of a mere flush
        ledger.ended(session, transaction)


def holds_of(session: Session, tasks: object) -> list[tuple[Hold, InstanceState[Any] | None]]:
    """What one task or claim holds, or each of an iterable of them; and the instance, where there is one."""
    items: list[Any] = [tasks] if _is_one(tasks) else list(_iterable(tasks))
    holds: list[tuple[Hold, InstanceState[Any] | None]]
    if not session.identity_map and not ledger_of(session).entries and all(type(item) is Claim for item in items):
        holds = [(Hold(item), None) for item in items]  # there is no instance to be found
    else:
        states = ledger_of(session).states() if any(isinstance(item, Claim) for item in items) else {}
        holds = [_hold(session, item, states) for item in items]
    claims = [hold.claim for hold, _ in holds]
    entities = {claim.entity for claim in claims}
    if len({spec_of(entity).table for entity in entities}) > 1:
        names = " and ".join(sorted(entity.__name__ for entity in entities))
        raise ArgumentError(f"these are claims of {names}: settle each model's alone")
    if len({(claim.identity, claim.attempt, claim.token) for claim in claims}) < len(holds):
        raise ArgumentError("the same claim is given twice")
    return holds


def _hold(
    session: Session, item: Any, states: Mapping[Claim, InstanceState[Any]]
) -> tuple[Hold, InstanceState[Any] | None]:
    if not isinstance(item, Claim):
        return hold_of(item), instance_state(item)
    state = states.get(item) or _present(session, item)
    return (Hold(item), None) if state is None else (_unsettled(state.info.get(_HOLD), item), state)


def _present(session: Session, claim: Claim) -> InstanceState[Any] | None:
    """The session's instance of a claim that was committed before."""
    task = session.identity_map.get(identity_key(claim.entity, claim.identity))
    state = None if task is None else instance_state(task)
    hold: Hold | None = None if state is None else state.info.get(_HOLD)
    return state if hold is not None and hold.claim == claim else None


def _is_one(tasks: object) -> bool:
    return isinstance(tasks, Claim) or hasattr(type(tasks), "__queue_spec__")


def _iterable(tasks: object) -> Iterable[object]:
    if isinstance(tasks, Iterable):
        return tasks
    raise ArgumentError(f"{tasks!r} is neither a claimed task nor a Claim, nor an iterable of them")
