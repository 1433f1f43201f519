"""Settling claims.  Each call takes what a claim returned, a :class:`.Claim`, or an iterable of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, overload

from sqlalchemy import null
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.util import identity_key

from ..backoff import policy_for
from ..checks import duration
from ..claims import Claim, Hold, holds_of, ledger_of
from ..dialects.base import Adapter
from ..exc import ArgumentError, ClaimLostError, IllegalTransitionError
from ..mixins import QueueMixin
from ..spec import Identity, QueueSpec, Where, spec_of
from ..statements import Assignment, remove
from ..states import Status
from ..texts import error_text
from ..transitions import Held, extending, failing, finishing, handing_back
from ..wakeups import announce
from ._connection import AnySession, open_, session_of
from .applying import Apply, identities, updating
from .recurring import Renewals
from .sets import cancel_where, discard_where
from .slots import Slots

Tasks: TypeAlias = QueueMixin | Claim | Iterable[QueueMixin] | Iterable[Claim]
Holds: TypeAlias = Sequence[tuple[Hold, InstanceState[Any] | None]]


def complete(session: AnySession, tasks: Tasks, result: object = None, *, stage: str | None = None) -> None:
    """The work is done: ``completed``, or deleted where the model's ``on_complete`` says so.

    A task that was enqueued anew while it ran (``on_conflict="rerun"``) becomes ``available`` instead.  One of a
    :class:`.StageMixin` goes on to its next stage, or to ``stage``; one of a :class:`.RecurringMixin` to its next run.

    ``result`` is kept as JSON by a model that derives from :class:`.ResultMixin`.

    In the session's transaction, in one statement for all (for each few thousand).  Raises :class:`.ClaimLostError`
    if a row is no longer the claim's: let it end the transaction, so that nothing done for a lost claim is committed.
    Raises :class:`.IllegalTransitionError`, before anything is sent, for what was not claimed or is settled already.
    """
    _settle(session, tasks, "completed", partial(_completing, result=result, stage=stage))


def fail(session: AnySession, tasks: Tasks, error: BaseException | str, retry_in: timedelta | None = None) -> None:
    """The work has failed: ``retryable`` after the model's backoff or ``retry_in``, and in the end ``discarded``.

    Discarded at once where the model's :class:`.RetryByError` says so.  A recurring task is never discarded: where
    others would be, its next run is scheduled, and the error stays until a run succeeds.
    ``error`` is kept as text, an exception as ``"TypeName: message"``.  For the rest see :func:`complete`.
    """
    if retry_in is not None:
        duration("retry_in", retry_in, zero=True)
    cause = type(error) if isinstance(error, BaseException) else None
    fail_because(session, tasks, error_text(error), cause, retry_in)


def fail_because(
    session: AnySession, tasks: Tasks, text: str, cause: type[BaseException] | None, retry_in: timedelta | None
) -> None:
    """:func:`fail` of an exception that is not at hand any more."""
    _settle(session, tasks, "failed", partial(_failing, text=text, cause=cause, retry_in=retry_in))


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
    values = updating(lambda held, _: finishing(held, Status.DISCARDED, error=text))
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
    _settle(session, tasks, "cancelled", updating(lambda held, _: finishing(held, Status.CANCELLED)))
    return None


def release(session: AnySession, tasks: Tasks) -> None:
    """Hand back unfinished: ``available`` at once; the attempt does not count.  For the rest see :func:`complete`."""
    _settle(session, tasks, "released", updating(lambda held, _: handing_back(held, None)))


def snooze(session: AnySession, tasks: Tasks, delay: timedelta) -> None:
    """Not now: ``scheduled`` after ``delay``, and the attempt does not count.  For the rest see :func:`complete`."""
    duration("delay", delay, zero=True)
    _settle(session, tasks, "snoozed", updating(lambda held, _: handing_back(held, delay)))


def heartbeat(session: AnySession, tasks: Tasks, lease: timedelta | None = None) -> None:
    """Still at it: the lease ends ``lease`` (the model's if not given) from now.  For the rest see :func:`complete`."""
    if lease is not None:
        duration("lease", lease)
    _settle(session, tasks, None, partial(_extending, lease=lease))


_UNTOUCHED = ("priority", "created_at", "topic", "task", "arguments", "trace_context", "schedule", "drift", "limit_key")
"""Roles of columns that settling never writes."""


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
        if spec.options.slots is not None and how is not None:
            Slots(session, adapter, spec).free(claims)
    if lost:
        raise ClaimLostError(lost)
    _note(session, holds, how)
    spec = spec_of(holds[0][0].claim.entity)
    if how == "released" or (how == "completed" and spec.moves) or (how is not None and spec.options.slots is not None):
        announce(session, spec)


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
        session.expire(task, [spec.attributes[role] for role in _written(hold, how)])


def _written(hold: Hold, how: str | None) -> Iterable[str]:
    """What an instance may no longer show; what cannot have changed stays at hand, for asyncio's sake too."""
    if how is None:
        return ("available_at",)
    roles = spec_of(hold.claim.entity).columns
    return (role for role in roles if role not in _UNTOUCHED and (role != "attempt" or hold.locked_by))


def _completing(
    adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim], *, result: object, stage: str | None
) -> set[Identity]:
    spec = held.spec
    _check_completion(spec, result, stage)
    kept: list[Assignment] = [] if result is None else [(spec["result"], result)]

    def end(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
        gone = _deleting(adapter, session, held, claims, stage) if spec.options.on_complete == "delete" else set()
        rest = [claim for claim in claims if claim.identity not in gone]
        update = updating(lambda held, _: [*kept, *finishing(held, Status.COMPLETED, stage=stage)])
        return gone | update(adapter, session, held, rest) if rest else gone

    if spec.has("schedule"):
        return Renewals(adapter, session, held).renew(claims, [(spec["error"], null()), *kept], end)
    return end(adapter, session, held, claims)


def _deleting(
    adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim], stage: str | None
) -> set[Identity]:
    done = held.fence(claims, adapter.key_in)
    lives = held.lives_on(Status.COMPLETED, stage)
    if lives is not None:
        done &= ~lives
    gone = adapter.change(session, held.spec, remove(held.spec, done), identities(claims))
    for identity in gone:
        task = session.identity_map.get(identity_key(held.spec.entity, identity))
        if task is not None:
            session.expunge(task)
    return gone


def _check_completion(spec: QueueSpec, result: object, stage: str | None) -> None:
    if result is not None and not spec.has("result"):
        raise ArgumentError(f"{spec.entity.__name__} has no column for a result: derive it from ResultMixin")
    if stage is not None and stage not in spec.options.stages:
        stages = ", ".join(spec.options.stages) or "none: that is for models that derive from StageMixin"
        raise ArgumentError(f"stage={stage!r}: the stages of {spec.entity.__name__} are {stages}")


def _extending(
    adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim], *, lease: timedelta | None
) -> set[Identity]:
    lease = lease or held.spec.options.lease
    lost = [] if held.spec.options.slots is None else Slots(session, adapter, held.spec).extend(claims, lease)
    mine = [claim for claim in claims if claim not in lost]
    return updating(lambda held, _: extending(held, lease))(adapter, session, held, mine) if mine else set()


def _failing(
    adapter: Adapter,
    session: Session,
    held: Held,
    claims: Sequence[Claim],
    *,
    text: str,
    cause: type[BaseException] | None,
    retry_in: timedelta | None,
) -> set[Identity]:
    spec, policy = held.spec, policy_for(held.spec.options.retry, cause)
    error: Assignment = (spec["error"], text)
    given_up = retry_in is None and policy is None

    def values(held: Held, claims: Sequence[Claim]) -> list[Assignment]:
        if given_up:
            return finishing(held, Status.DISCARDED, error=text)
        wait = policy if retry_in is None and policy is not None else lambda _: retry_in or timedelta(0)
        delays = {n: duration("retry", wait(n), zero=True) for n in _tries(spec, claims)}
        return [*failing(held, delays), error]

    if not spec.has("schedule"):
        return updating(values)(adapter, session, held, claims)
    renewals = Renewals(adapter, session, held)
    if given_up:
        return renewals.renew(claims, [error], updating(values))
    return renewals.renew_exhausted(claims, [error], updating(values))


def _tries(spec: QueueSpec, claims: Sequence[Claim]) -> Iterable[int]:
    """The numbers of attempts for which a delay is needed.  Those beyond the last have its."""
    attempts = sorted({claim.attempt for claim in claims})
    if not spec.has("attempts_before"):
        return attempts
    return range(1, min(attempts[-1], spec.options.max_attempts) + 1)
