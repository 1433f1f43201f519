"""Settling claims.  Each call takes what a claim returned, a :class:`.Claim`, or an iterable of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, overload

from sqlalchemy.orm import InstanceState, Session

from ..checks import duration
from ..claims import Claim, Hold, holds_of, ledger_of
from ..dialects.base import Adapter
from ..exc import ArgumentError, ClaimLostError, IllegalTransitionError
from ..mixins import QueueMixin
from ..spec import QUEUE_ROLES, Identity, QueueSpec, Where, spec_of
from ..statements import Assignment, remove, write
from ..states import Status
from ..texts import error_text
from ..transitions import Held, extending, failing, finishing, handing_back
from ..wakeups import announce
from ._connection import AnySession, open_, session_of
from .sets import cancel_where, discard_where

Tasks: TypeAlias = QueueMixin | Claim | Iterable[QueueMixin] | Iterable[Claim]
Holds: TypeAlias = Sequence[tuple[Hold, InstanceState[Any] | None]]


def complete(session: AnySession, tasks: Tasks, result: object = None) -> None:
    """The work is done: ``completed``, or deleted where the model's ``on_complete`` says so.

    A task that was enqueued anew while it ran (``on_conflict="rerun"``) becomes ``available`` instead.

    In the session's transaction, in one statement for all (for each few thousand).  Raises :class:`.ClaimLostError`
    if a row is no longer the claim's: let it end the transaction, so that nothing done for a lost claim is committed.
    Raises :class:`.IllegalTransitionError`, before anything is sent, for what was not claimed or is settled already.
    """
    if result is not None:
        raise ArgumentError("there is no column for a result: this model's queue keeps none")
    _settle(session, tasks, "completed", _completing)


def fail(session: AnySession, tasks: Tasks, error: BaseException | str, retry_in: timedelta | None = None) -> None:
    """The work has failed: ``retryable`` after the model's backoff or ``retry_in``, and in the end ``discarded``.

    ``error`` is kept as text, an exception as ``"TypeName: message"``.  For the rest see :func:`complete`.
    """
    if retry_in is not None:
        duration("retry_in", retry_in, zero=True)
    text = error_text(error)

    def values(held: Held, claims: Sequence[Claim]) -> list[Assignment]:
        retry = held.spec.options.retry
        attempts = {claim.attempt for claim in claims}
        delays = {n: duration("retry", retry(n), zero=True) if retry_in is None else retry_in for n in attempts}
        return [*failing(held, delays), (held.spec["error"], text)]

    _settle(session, tasks, "failed", _updating(values))


@overload
def discard(session: AnySession, tasks: Tasks, /, error: BaseException | str) -> None: ...
@overload
def discard(session: AnySession, entity: type[QueueMixin], /, *where: Where, error: BaseException | str) -> int: ...
def discard(session: AnySession, tasks: Any, /, *where: Any, error: BaseException | str | None = None) -> int | None:
    """Give up at once: ``discarded``, a dead letter, with the text of ``error``.

    With claims it settles them, see :func:`complete`.  With a model it discards all of its tasks that satisfy ``where``
    and are not final, running ones included (their claims are lost), and returns how many.
    """
    if isinstance(tasks, type):
        if error is None:
            raise ArgumentError("a dead letter says why it is one: discard(session, Task, Task.id == 7, error='...')")
        return discard_where(session_of(session), spec_of(tasks), where, error_text(error))
    if len(where) + (error is not None) != 1:
        raise ArgumentError("claims are discarded by discard(session, tasks, error); criteria go with a model")
    text = error_text(where[0] if error is None else error)
    values = _updating(lambda held, _: [*finishing(held, Status.DISCARDED), (held.spec["error"], text)])
    _settle(session, tasks, "discarded", values)
    return None


@overload
def cancel(session: AnySession, tasks: Tasks, /) -> None: ...
@overload
def cancel(session: AnySession, entity: type[QueueMixin], /, *where: Where) -> int: ...
def cancel(session: AnySession, tasks: Any, /, *where: Where) -> int | None:
    """No longer wanted: ``cancelled``.

    With claims it settles them, see :func:`complete`.  With a model it cancels all of its tasks that satisfy ``where``
    and are not final, running ones included (their claims are lost), and returns how many.
    """
    if isinstance(tasks, type):
        return cancel_where(session_of(session), spec_of(tasks), where)
    if where:
        raise ArgumentError("criteria go with a model: cancel(session, Task, Task.id == 7)")
    _settle(session, tasks, "cancelled", _updating(lambda held, _: finishing(held, Status.CANCELLED)))
    return None


def release(session: AnySession, tasks: Tasks) -> None:
    """Hand back unfinished: ``available`` at once; the attempt does not count.  For the rest see :func:`complete`."""
    _settle(session, tasks, "released", _updating(lambda held, _: handing_back(held, None)))


def snooze(session: AnySession, tasks: Tasks, delay: timedelta) -> None:
    """Not now: ``scheduled`` after ``delay``, and the attempt does not count.  For the rest see :func:`complete`."""
    duration("delay", delay, zero=True)
    _settle(session, tasks, "snoozed", _updating(lambda held, _: handing_back(held, delay)))


def heartbeat(session: AnySession, tasks: Tasks, lease: timedelta | None = None) -> None:
    """Still at it: the lease ends ``lease`` (the model's if not given) from now.  For the rest see :func:`complete`."""
    if lease is not None:
        duration("lease", lease)
    _settle(session, tasks, None, _updating(lambda held, _: extending(held, lease or held.spec.options.lease)))


SETTLED_ROLES = tuple(role for role in QUEUE_ROLES if role not in ("priority", "created_at"))

Apply: TypeAlias = Callable[[Adapter, Session, Held, Sequence[Claim]], set[Identity]]


def _settle(session: AnySession, tasks: Tasks, how: str | None, apply: Apply) -> None:
    """Apply to the rows of ``tasks``, fenced; note it in the ledger, or raise for those that were lost."""
    session = session_of(session)
    holds = holds_of(session, tasks)
    if not holds:
        return
    if how is None and any(hold.locked_by for hold, _ in holds):
        raise IllegalTransitionError("a claim made with lease=None has no lease: its row is locked until the commit")
    adapter = open_(session, spec_of(holds[0][0].claim.entity))
    lost: list[Claim] = []
    alike = defaultdict[tuple[QueueSpec, str | None], list[Claim]](list)
    for hold, _ in holds:
        alike[spec_of(hold.claim.entity), hold.locked_by].append(hold.claim)
    for (spec, locked_by), claims in alike.items():
        held = Held(spec=spec, claimed_by=locked_by)
        for some in adapter.batches(claims):
            kept = apply(adapter, session, held, some)
            lost += [claim for claim in some if claim.identity not in kept]
    if lost:
        raise ClaimLostError(lost)
    _note(session, holds, how)
    if how == "released":
        announce(session, spec_of(holds[0][0].claim.entity))


def _note(session: Session, holds: Holds, how: str | None) -> None:
    """Instances forget what they knew of what was written, and that they hold the row."""
    ledger = ledger_of(session)
    for hold, state in holds:
        if state is None:
            continue
        spec = spec_of(hold.claim.entity)
        if how is not None:
            ledger.remember(session, state, Hold(hold.claim, hold.locked_by, settled=how))
        task = state.obj()
        if task is None or state.session is not session:
            continue
        if how == "completed" and spec.options.on_complete == "delete":
            session.expunge(task)
        else:
            session.expire(task, [spec.attributes[role] for role in _written(hold, how)])


def _written(hold: Hold, how: str | None) -> Iterable[str]:
    """What an instance may no longer show; what cannot have changed stays at hand, for asyncio's sake too."""
    if how is None:
        return ("available_at",)
    return (role for role in SETTLED_ROLES if role != "attempt" or hold.locked_by)


def _updating(values: Callable[[Held, Sequence[Claim]], Sequence[Assignment]]) -> Apply:
    def apply(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
        fence = held.fence(claims, adapter.key_in)
        return adapter.change(session, held.spec, write(held.spec, fence, values(held, claims)), _identities(claims))

    return apply


def _completing(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
    update = _updating(lambda held, _: finishing(held, Status.COMPLETED))
    if held.spec.options.on_complete == "keep":
        return update(adapter, session, held, claims)
    done = held.fence(claims, adapter.key_in)
    if held.runs_again is not None:
        done &= ~held.runs_again
    gone = adapter.change(session, held.spec, remove(held.spec, done), _identities(claims))
    rest = [claim for claim in claims if claim.identity not in gone]
    return gone | update(adapter, session, held, rest) if rest and not held.only_locked else gone


def _identities(claims: Sequence[Claim]) -> list[Identity]:
    return [claim.identity for claim in claims]
