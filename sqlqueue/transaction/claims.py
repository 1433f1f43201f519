"""Finds the claims that tasks carry, and marks them as settled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.util import identity_key

from .._support.claim import Claim
from .._support.error_text import key_text
from .._support.exc import ArgumentError, IllegalTransitionError
from ..queue.spec import spec_of
from .ledger import Hold, current_hold, ledger_of


def hold_of(task: object) -> Hold:
    """Return the hold of ``task``.  Raises :class:`.IllegalTransitionError` if it has no unsettled claim."""
    spec_of(type(task))
    return _unsettled(current_hold(instance_state(task)), task)


def _unsettled(hold: Hold | None, task: object) -> Hold:
    if hold is not None and hold.settled is None:
        return hold
    reason = "was not claimed, or its claim was rolled back" if hold is None else f"is already settled: {hold.settled}"
    key = instance_state(task).identity
    name = f"a new {type(task).__name__}" if key is None else f"{type(task).__name__} {key_text(key)}"
    raise IllegalTransitionError(f"{name} {reason}. Only claimed tasks can be settled, and only once", task=task)


def settle(session: Session, task: object, how: str) -> None:
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
    items: list[Any] = [tasks] if _is_one(tasks) else list(_iterable(tasks))
    holds: list[tuple[Hold, InstanceState[Any] | None]]
    if not session.identity_map and not ledger_of(session).changes and set(map(type, items)) == {Claim}:
        holds = [(Hold(item), None) for item in items]  # there are no instances to find
    else:
        states = ledger_of(session).states() if any(isinstance(item, Claim) for item in items) else {}
        holds = [_hold(session, item, states) for item in items]
    claims = [hold.claim for hold, _ in holds]
    entities = {claim.entity for claim in claims}
    if len({spec_of(entity).table for entity in entities}) > 1:
        names = " and ".join(sorted(entity.__name__ for entity in entities))
        raise ArgumentError(f"these are claims of {names}: settle the claims of each model separately")
    if len({(claim.identity, claim.attempt, claim.token) for claim in claims}) < len(holds):
        raise ArgumentError("the same claim is given twice")
    return holds


def _hold(
    session: Session, item: Any, states: Mapping[Claim, InstanceState[Any]]
) -> tuple[Hold, InstanceState[Any] | None]:
    if not isinstance(item, Claim):
        return hold_of(item), instance_state(item)
    state = states.get(item) or _present(session, item)
    return (Hold(item), None) if state is None else (_unsettled(current_hold(state), item), state)


def _present(session: Session, claim: Claim) -> InstanceState[Any] | None:
    """Return the session's instance of a claim that was committed before, if there is one."""
    task = session.identity_map.get(identity_key(claim.entity, claim.identity))
    state = None if task is None else instance_state(task)
    hold = None if state is None else current_hold(state)
    return state if hold is not None and hold.claim == claim else None


def _is_one(tasks: object) -> bool:
    return isinstance(tasks, Claim) or hasattr(type(tasks), "__queue_spec__")


def _iterable(tasks: object) -> Iterable[object]:
    if isinstance(tasks, Iterable):
        return tasks
    raise ArgumentError(f"{tasks!r} is neither a claimed task nor a Claim, nor an iterable of them")
