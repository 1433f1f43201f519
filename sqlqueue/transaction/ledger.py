"""The ledger: which claims a session's transaction has made and settled, through savepoints and rollbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.orm import InstanceState, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.util import identity_key

from .._support.errors import ArgumentError, Claim, IllegalTransitionError, UnsettledClaimError
from .._support.texts import key_text
from ..dialects.base import Adapter
from ..dialects.statements import Unreadable
from ..queue.spec import Identity, QueueSpec, spec_of

# -- records the claims of a session's transaction in their instances, and undoes that record on rollback -------------

_HOLD = "sqlqueue.claim"
_LEDGER = "sqlqueue.ledger"


class Hold(NamedTuple):
    """The record that an instance keeps of its claim."""

    claim: Claim
    locked_by: str | None = None
    """The claimer's name if the claim has written nothing yet (``lease=None``), else ``None``."""
    settled: str | None = None
    """How the claim was settled; ``None`` if it is unsettled."""


def current_hold(state: InstanceState[Any]) -> Hold | None:
    """Return the hold of the instance that ``state`` belongs to; ``None`` without a claim."""
    hold: Hold | None = state.info.get(_HOLD)
    return hold


def carry(source: object, target: object) -> None:
    """Copy the hold of ``source`` to ``target``, another instance of the same row."""
    instance_state(target).info[_HOLD] = instance_state(source).info.get(_HOLD)


@dataclass(slots=True, eq=False)
class _Change:
    """A change of instances' holds within ``transaction``, with the values before."""

    transaction: SessionTransaction | None
    only_locks: bool
    """Whether some of the holds are claims that have written nothing yet."""
    before: list[tuple[InstanceState[Any], Hold | None]]

    def holds(self) -> Iterator[tuple[InstanceState[Any], Hold]]:
        for state, _ in self.before:
            hold = current_hold(state)
            if hold is not None:
                yield state, hold


@dataclass(slots=True)
class Ledger:
    """A record of the changes that a session's current transaction has made to claims.

    A rollback undoes a claim, and another claim then gets the same attempt number. Therefore, the instance must drop
    its claim, and a claim whose settlement is rolled back must become unsettled again.
    """

    begun: set[Engine] = field(default_factory=set)
    """The engines on which the transaction has begun."""
    used: set[SessionTransaction] = field(default_factory=set)
    """The transaction and its savepoints, as far as they have used a database."""
    opened: dict[tuple[Engine | Connection, QueueSpec, Any], Adapter] = field(default_factory=dict)
    """The adapters of the queues that the transaction uses, by access; what this needs has been checked."""
    guarded: set[Connection] = field(default_factory=set)
    """The connections whose commit checks for unsettled claims that only lock."""
    changes: list[_Change] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    """The rows that claims of the transaction have set aside, because they cannot be read."""

    def remember(self, session: Session, holds: Sequence[tuple[InstanceState[Any], Hold]]) -> None:
        """Store ``holds`` in their instances, and keep the previous holds for a rollback."""
        before: list[tuple[InstanceState[Any], Hold | None]] = []
        only_locks = False
        for state, hold in holds:
            info = state.info
            before.append((state, info.get(_HOLD)))
            info[_HOLD] = hold
            only_locks = only_locks or hold.locked_by is not None
        if before:
            self.changes.append(_Change(innermost(session), only_locks, before))

    def wrote(self, session: Session, states: Iterable[InstanceState[Any]]) -> None:
        """Record that the rows of ``states`` were written with their holds unchanged, for a rollback to expire them."""
        before = [(state, current_hold(state)) for state in states]
        if before:
            self.changes.append(_Change(innermost(session), False, before))

    def states(self) -> dict[Claim, InstanceState[Any]]:
        """Return the instances of this transaction's claims, by claim."""
        return {hold.claim: state for change in self.changes for state, hold in change.holds()}

    def locked(self, table: Table) -> list[Identity]:
        """Return the keys of the rows of ``table`` that are held only by their locks."""
        if not self.changes:
            return []
        return [claim.identity for claim in self.unsettled if spec_of(claim.entity).table is table]

    @property
    def unsettled(self) -> list[Claim]:
        """The claims that only lock, which a commit would drop."""
        holds = (hold for change in self.changes if change.only_locks for _, hold in change.holds())
        return list({hold.claim: None for hold in holds if hold.locked_by and not hold.settled})

    def committed(self, ended: SessionTransaction | None) -> None:
        """Assign the changes of ``ended`` to its parent, or forget them if it was the outermost transaction."""
        if ended is None or not ended.nested:
            self.changes.clear()
        for change in self.changes:
            if change.transaction is ended:
                change.transaction = ended.parent  # type: ignore[union-attr]

    def ended(self, session: Session, transaction: SessionTransaction) -> None:
        """Undo what ``transaction`` has not committed, and expire the affected instances of the session.

        The session itself expires only what it has flushed, or everything if the whole transaction is rolled back.
        """
        kept: list[_Change] = []
        undone: list[_Change] = []
        for change in self.changes:
            (undone if transaction in lineage(change.transaction) else kept).append(change)
        for change in reversed(undone):
            for state, before in change.before:
                state.info[_HOLD] = before
                if state.session is session and state.persistent:
                    session.expire(state.obj())
        self.changes = kept
        self.used.discard(transaction)
        self.opened.clear()
        if transaction.parent is None:
            self.begun.clear()
            self.guarded.clear()
            self.unreadable.clear()


def ledger_of(session: Session) -> Ledger:
    """Return the ledger of ``session``, creating it if needed."""
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is None:
        ledger = session.info[_LEDGER] = Ledger()
    return ledger


def innermost(session: Session) -> SessionTransaction | None:
    """Return the innermost savepoint of ``session``, or its transaction; ``None`` if none has begun."""
    return session.get_nested_transaction() or session.get_transaction()


def lineage(transaction: SessionTransaction | None) -> Iterator[SessionTransaction]:
    """Yield ``transaction`` and its parents, the innermost first."""
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def may_have_written(session: Session) -> bool:
    """Return whether the current transaction of ``session`` has used a database, or its commit might."""
    return bool(ledger_of(session).begun) or _may_write(session)


def has_used(session: Session, savepoint: SessionTransaction) -> bool:
    """Return whether a database was used within ``savepoint``, or whether the session has pending changes."""
    return savepoint in ledger_of(session).used or _may_write(session)


def _may_write(session: Session) -> bool:
    if session.new or session.dirty or session.deleted:
        return True
    return any(listener is not _before_commit for listener in session.dispatch.before_commit)


def guard(session: Session, connection: Connection) -> None:
    """Make every commit of ``connection`` raise :class:`.UnsettledClaimError` if it would drop a claim that only locks.

    ``before_commit`` usually raises it first.  It cannot if the outermost transaction is committed within an open
    savepoint, since that looks like a release of the savepoint.
    """
    ledger = ledger_of(session)
    if connection not in ledger.guarded:
        ledger.guarded.add(connection)
        event.listen(connection, "commit", lambda committing: _refuse_commit(session, committing))


def _refuse_commit(session: Session, connection: Connection) -> None:
    try:
        _refuse_unsettled(session)
    except UnsettledClaimError:
        # SQLAlchemy considers a transaction ended when its commit fails, and sends no rollback: the connection would
        # return to the pool with its locks and writes.
        connection.connection.rollback()
        raise


def _refuse_unsettled(session: Session) -> None:
    unsettled = ledger_of(session).unsettled
    if unsettled:
        raise UnsettledClaimError(unsettled)


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if transaction.session is not session:
        return  # a separate connection is being prepared like those of this session
    ledger = ledger_of(session)
    ledger.begun.add(connection.engine)
    ledger.used.add(transaction)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.changes and not session.in_nested_transaction():
        _refuse_unsettled(session)


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.changes:
        ledger.committed(innermost(session))


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    ledger: Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and (transaction.nested or transaction.parent is None):  # not the transaction of a flush
        ledger.ended(session, transaction)


# -- finds the claims that tasks carry, and marks them as settled -----------------------------------------------------


def hold_of(task: object) -> Hold:
    """Return the hold of ``task``.  Raises :class:`.IllegalTransitionError` if it has no unsettled claim."""
    spec_of(type(task))
    return _unsettled(instance_state(task), task)


def _unsettled(state: InstanceState[Any], task: object) -> Hold:
    hold: Hold | None = state.info.get(_HOLD)
    if hold is not None and hold.settled is None:
        return hold
    reason = "was not claimed, or its claim was rolled back" if hold is None else f"is already settled: {hold.settled}"
    model, key = state.class_.__name__, state.identity
    name = f"a new {model}" if key is None else f"{model} {key_text(key)}"
    raise IllegalTransitionError(f"{name} {reason}. Only claimed tasks can be settled, and only once", task=task)


def mark_settled(session: Session, task: object, how: str) -> None:
    """Mark the claim of ``task`` as settled, and expire the instance.  Raises :class:`.IllegalTransitionError` if it
    has none."""
    hold = hold_of(task)
    ledger_of(session).remember(session, [(instance_state(task), hold._replace(settled=how))])
    session.expire(task)


def is_unsettled(task: object) -> bool:
    """Return whether ``task`` carries a claim that is not settled."""
    hold = current_hold(instance_state(task))
    return hold is not None and hold.settled is None


def is_settled(task: object) -> bool:
    """Return whether ``task`` carries a claim that is settled."""
    hold = current_hold(instance_state(task))
    return hold is not None and hold.settled is not None


def claim_of(task: object) -> Claim:
    """Return the claim that ``task`` carries, as it was made: refreshing or expiring the instance does not change it.

    Raises :class:`.IllegalTransitionError` if the instance was never claimed, or its claim is settled.
    """
    return hold_of(task).claim


def claim_in(task: object) -> Claim:
    """Return the claim that the row of ``task`` shows, in the values of the instance."""
    spec = spec_of(type(task))
    names = (spec.attributes[role] for role in ("attempt", "claim_token", "claimed_by", "claimed_at"))
    return Claim(type(task), spec.identity_of(task), *(getattr(task, name) for name in names))


def row_of(task: object) -> tuple[QueueSpec, Identity]:
    """Return the queue and the primary key of a claim, or of an instance that has been stored."""
    if isinstance(task, Claim):
        return spec_of(task.entity), task.identity
    spec = spec_of(type(task))
    return spec, spec.identity_of(task)


def claim_made(task: Any) -> Claim:
    """Return the claim just made of ``task``, even if the task was consumed and has nothing to settle."""
    hold = current_hold(instance_state(task))
    if hold is not None:
        return hold.claim
    spec = spec_of(type(task))
    return Claim(type(task), spec.identity_of(task), getattr(task, spec.attributes["attempt"]))


def holds_of(session: Session, tasks: object) -> list[tuple[Hold, InstanceState[Any] | None]]:
    """Return the holds of a task, a claim or an iterable of them, each with its instance if there is one.

    Raises :class:`.ArgumentError` for other objects, claims of several tables and repeated claims, and
    :class:`.IllegalTransitionError` for tasks without an unsettled claim.
    """
    is_one = isinstance(tasks, Claim) or hasattr(type(tasks), "__queue_spec__")
    if not is_one and not isinstance(tasks, Iterable):
        raise ArgumentError(f"{tasks!r} is neither a claimed task nor a Claim, nor an iterable of them")
    items: list[Any] = [tasks] if is_one else list(cast("Iterable[Any]", tasks))
    holds: list[tuple[Hold, InstanceState[Any] | None]]
    if not session.identity_map and not ledger_of(session).changes and set(map(type, items)) == {Claim}:
        holds = [(Hold(item), None) for item in items]  # there are no instances to find
    else:
        states = ledger_of(session).states() if any(isinstance(item, Claim) for item in items) else {}
        holds = [
            _hold_of_claim(session, item, states) if isinstance(item, Claim) else (hold_of(item), instance_state(item))
            for item in items
        ]
    claims = [hold.claim for hold, _ in holds]
    entities = {claim.entity for claim in claims}
    if len({spec_of(entity).table for entity in entities}) > 1:
        names = " and ".join(sorted(entity.__name__ for entity in entities))
        raise ArgumentError(f"these are claims of {names}: settle the claims of each model separately")
    if len({(claim.identity, claim.attempt, claim.token) for claim in claims}) < len(holds):
        raise ArgumentError("the same claim is given twice")
    return holds


def _hold_of_claim(
    session: Session, claim: Claim, states: Mapping[Claim, InstanceState[Any]]
) -> tuple[Hold, InstanceState[Any] | None]:
    state = states.get(claim) or _present(session, claim)
    return (Hold(claim), None) if state is None else (_unsettled(state, claim), state)


def _present(session: Session, claim: Claim) -> InstanceState[Any] | None:
    """Return the session's instance of a claim that was committed before, if there is one."""
    task = session.identity_map.get(identity_key(claim.entity, claim.identity))
    state = None if task is None else instance_state(task)
    hold = None if state is None else current_hold(state)
    return state if hold is not None and hold.claim == claim else None
