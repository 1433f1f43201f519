"""Makes waiting tasks due at once."""

from __future__ import annotations

from sqlalchemy import or_

from ..model.mixins import QueueMixin
from ..queue.spec import Where, spec_of
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.criteria import only
from ..sql.states import is_early, state
from ..transaction.connection import AnySession, session_of
from ..transaction.notifications import announce
from .batches import limited
from .bulk import change
from .session_criteria import within

WAITING = (Status.SCHEDULED, Status.RETRYABLE)


def run_now(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int | None = None) -> int:
    """Make tasks that satisfy ``where`` and wait for a later time ``available`` now. Return how many.

    These are ``scheduled`` and ``retryable`` tasks.  The attempts that they have made still count; :func:`retry` allows
    all attempts again. The next run of a recurring task follows this one.  For the transaction, its locks and ``limit``
    see :func:`cancel`.
    """
    spec = spec_of(entity)
    session = session_of(session)
    waiting = or_(spec["status"].in_([state(status) for status in WAITING]), is_early(spec))
    hastened = limited(
        session,
        spec,
        only(spec, waiting, *within(session, spec, where)),
        limit,
        lambda chosen: change(
            session, spec, chosen, [(spec["status"], state(Status.AVAILABLE)), (spec["available_at"], utcnow())]
        ),
        among=(*WAITING, Status.AVAILABLE),
    )
    if hastened:
        announce(session, spec)
    return hastened
