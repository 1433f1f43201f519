"""A ``with`` block that claims a task and settles it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.base import ExecutableOption

from .._support.error_text import error_text
from .._support.exc import ClaimLostError, UnsettledClaimError
from .._support.logs import logger_of
from ..model.mixins import T
from ..queue.spec import Where, spec_of
from ..transaction.claims import claim_of, is_unsettled
from ..transaction.connection import AnySession, session_of
from .attempts import Attempt, brief
from .claim_query import Lease, OrderBy
from .claiming import claim
from .settling import complete, fail

logger = logger_of("sqlqueue")


@contextmanager
def claiming(
    session: AnySession,
    entity: type[T],
    *where: Where,
    lease: Lease = "default",
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
    claimed_by: str | None = None,
) -> Generator[T | None]:
    """Claim a task, run the block in a savepoint, and settle the task: ``with claiming(session, Task) as task:``.

    Leaving the block completes the task, unless the block settled it.  An exception rolls the block's writes back to
    the savepoint, is recorded by :func:`fail`, logged, and suppressed.  :class:`.ClaimLostError`, and exceptions that
    do not derive from :class:`Exception`, are raised.  The target is ``None`` if no task is free.
    """
    session = session_of(session)
    task = claim(session, entity, *where, lease=lease, order_by=order_by, options=options, claimed_by=claimed_by)
    if task is None:
        yield None
        return
    held = claim_of(task)
    attempt = Attempt.of(spec_of(entity), held, dict(instance_state(task).dict))
    savepoint = session.begin_nested()
    try:
        yield task
        savepoint.commit()
    except BaseException as error:
        if session.get_nested_transaction() is savepoint:
            savepoint.rollback()  # raises if the engine has ended the whole transaction, as after a deadlock
        if isinstance(error, (ClaimLostError, UnsettledClaimError)) or not isinstance(error, Exception):
            raise
        prospect, reason = attempt.failing(type(error), None), brief(error_text(error))
        logger.log(prospect.level, "%s failed (%s), %s", attempt, reason, prospect.text, exc_info=error)
        fail(session, held, error)
    else:
        if is_unsettled(task):
            complete(session, held)
