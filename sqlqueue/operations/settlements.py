"""What becomes of claimed tasks, as values that settling applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import Delete, null
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key

from .._support.checks import duration
from .._support.claim import Claim
from .._support.exc import ArgumentError
from .._support.jsontext import check_json
from ..dialects.base import Adapter
from ..queue.retries import policy_for
from ..queue.spec import Criterion, Identity, QueueSpec
from ..queue.status import Status
from ..sql.selection import Assignment, remove
from ..sql.transitions import Held, extending, failing, finishing, handing_back
from .fenced_updates import Apply, change, updating
from .recurring import Renewals
from .slots import Slots


class Settlement(NamedTuple):
    """What is to become of claimed tasks."""

    how: str | None
    """In a word, that refuses a second one; ``None`` if the claims go on."""
    apply: Apply


def completing(result: object = None, stage: str | None = None) -> Settlement:
    """Raises :class:`.ArgumentError` for a result that is not JSON."""
    check_json("result", result)
    return Settlement("completed", partial(_completing, result=result, stage=stage))


def failing_because(text: str, cause: type[BaseException] | None, retry_in: timedelta | None) -> Settlement:
    return Settlement("failed", partial(_failing, text=text, cause=cause, retry_in=retry_in))


def discarding(text: str) -> Settlement:
    return Settlement("discarded", updating(lambda held, _: finishing(held, Status.DISCARDED, error=text)))


def snoozing(delay: timedelta) -> Settlement:
    return Settlement("snoozed", updating(lambda held, _: handing_back(held, delay)))


def extending_by(lease: timedelta | None) -> Settlement:
    return Settlement(None, partial(_extending, lease=lease))


CANCELLING = Settlement("cancelled", updating(lambda held, _: finishing(held, Status.CANCELLED), "cancelled"))
RELEASING = Settlement("released", updating(lambda held, _: handing_back(held, None), "released"))


def _completing(
    adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim], *, result: object, stage: str | None
) -> set[Identity]:
    spec = held.spec
    _check_completion(spec, result, stage)
    kept: list[Assignment] = [] if result is None else [(spec["result"], result)]
    like = ("completed", stage) if result is None else None

    def end(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
        gone, only = set[Identity](), None
        if spec.options.on_complete == "delete":
            gone, only = _deleting(adapter, session, held, claims, stage), held.lives_on(Status.COMPLETED, stage)
            claims = [claim for claim in claims if claim.identity not in gone]
            if only is None or not claims:  # what was passed over may be free by now, and is not to be kept for that
                return gone
        update = updating(lambda held, _: [*kept, *finishing(held, Status.COMPLETED, stage=stage)], like, only)
        return gone | update(adapter, session, held, claims)

    if spec.has("schedule"):
        return Renewals(adapter, session, held).renew(claims, [(spec["error"], null()), *kept], end)
    return end(adapter, session, held, claims)


def _deleting(
    adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim], stage: str | None
) -> set[Identity]:
    lives = held.lives_on(Status.COMPLETED, stage)

    def removing(mine: Criterion) -> Delete:
        return remove(held.spec, mine if lives is None else mine & ~lives)

    gone = change(adapter, session, held, claims, removing, like=("deleted", stage))
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
    spec, lease = held.spec, lease or held.spec.options.lease
    kept = updating(lambda held, _: extending(held, lease))(adapter, session, held, claims)
    if not kept or spec.options.slots is None:
        return kept
    mine = [claim for claim in claims if claim.identity in kept]
    return kept - {claim.identity for claim in Slots(session, adapter, spec).extend(mine, lease, waits=held.waits)}


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
