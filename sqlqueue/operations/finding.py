"""Tasks to look at: nothing is claimed, nothing is locked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from ..model.mixins import T
from ..queue.spec import Where, spec_of
from ..sql.selection import only
from ..transaction.connection import AnySession, open_, session_of
from .claiming import OrderBy


def find(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T]:
    """The tasks that satisfy ``where``, whatever their state, as they are in the database now; they stay unclaimed.

    ``order_by``: any columns, the primary key if not given, which is the one order that never takes a sort;
    ``limit``: how many at the most, all if not given; ``options``: any loader options.  For what is older than an hour
    there is ``Task.created_at <= utcnow(-timedelta(hours=1))``, by the database's clock.
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
