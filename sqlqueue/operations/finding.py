"""Reads tasks without claiming or locking them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from ..model.mixins import T
from ..queue.spec import Where, spec_of
from ..sql.criteria import only
from ..transaction.connection import AnySession, open_, session_of
from .claim_query import OrderBy


def find(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T]:
    """Return tasks that satisfy ``where``, in any state, as they are in the database now, without claiming them.

    ``order_by``: any columns; by default the primary key, the one order that never needs a sort.  ``limit``: the
    maximum number to return; all by default.  ``options``: any loader options.  To find tasks older than an hour by the
    database's clock, give ``Task.created_at <= utcnow(-timedelta(hours=1))``.
    """
    spec = spec_of(entity)
    session = session_of(session)
    if limit is not None:
        count("limit", limit)
    open_(session, spec)
    order = order_by if isinstance(order_by, Sequence) else (order_by,)
    statement = select(entity).where(only(spec, *where)).order_by(*(order or spec.primary_key)).limit(limit)
    rows = session.scalars(
        statement.options(*options),
        execution_options={"populate_existing": True},
        bind_arguments=spec.bind_arguments,
    )
    return rows.unique().all()
