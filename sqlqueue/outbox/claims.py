"""Claims of messages: the oldest of each key and those that follow it, in the order of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from .._support.checks import count
from .._support.errors import ArgumentError
from ..kinds import OutboxMixin
from ..operations.claiming import ClaimQuery, claim_matching
from ..queue.spec import QueueSpec, Where, spec_of
from ..transaction import AnySession

M = TypeVar("M", bound=OutboxMixin)


def claim_messages(
    session: AnySession,
    entity: type[M],
    *where: Where,
    limit: int,
    lease: timedelta | None = None,
    claimed_by: str | None = None,
) -> Sequence[M]:
    """Claim up to ``limit`` messages that may be published now and that no other claim holds, in the transaction.

    Of each key, the first unfinished message is claimed if it is claimable, then those right after it, while there is
    room, up to the first that is not claimable.  Until it is finished, no other claim gets a message of that key.
    Messages without a key can all be claimed.  Returns persistent instances: the messages of each key together and in
    order; the keys take turns.

    They are ``running``, with a lease, the model's by default: commit, publish in that order, and settle them.  For
    what is locked, undone by a rollback, and raised, see :func:`.claim_many`; it does not wait for other claims.
    If anything other than :func:`claim_messages` has locked a message, those after it in its key may be locked too.
    """
    query = ClaimQuery(outbox_of(entity), where, run=count("limit", limit))
    return claim_matching(session, query, limit, lease="default" if lease is None else lease, claimed_by=claimed_by)


def outbox_of(entity: type[Any]) -> QueueSpec:
    """Return the spec of an outbox.  Raises :class:`.ArgumentError` for other models."""
    spec = spec_of(entity)
    if not issubclass(entity, OutboxMixin):
        raise ArgumentError(f"{entity.__name__} is not an outbox: derive it from sqlqueue.outbox.OutboxMixin")
    return spec
