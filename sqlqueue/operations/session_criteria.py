"""The criteria that a session adds to each SELECT of a model (``with_loader_criteria``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import event, false, select
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.sql.base import ExecutableOption

from .._support.errors import ArgumentError
from .._support.private import entity_criteria, options_of
from ..dialects.base import Adapter
from ..queue.spec import Criterion, QueueSpec, Where


def scope_of(session: Session, spec: QueueSpec, options: Sequence[ExecutableOption] = ()) -> tuple[Criterion, ...]:
    """Return the criteria of ``with_loader_criteria`` for this queue, in ``options`` or added by ``do_orm_execute``.

    The ORM adds such criteria only to its own SELECT of an entity, but the statements of this library use the table.
    Therefore, the session's listeners receive such a SELECT, which is not executed.
    """
    if session.dispatch.do_orm_execute:
        options = _options_shown(session, spec, options)
    return tuple(entity_criteria(options, spec.mapper)) if options else ()


def within(session: Session, spec: QueueSpec, where: Sequence[Where] = ()) -> tuple[Where, ...]:
    """Return ``where`` together with the session's own criteria, see :func:`scope_of`."""
    return (*where, *scope_of(session, spec))


def is_restricted(session: Session, adapter: Adapter, spec: QueueSpec) -> bool:
    """Return whether the session sees only some of the queue's tasks: by its criteria, or by row-level security."""
    return bool(scope_of(session, spec)) or adapter.inspection.hides_rows(session.connection(spec.bind_arguments), spec)


def refuse_if_restricted(session: Session, adapter: Adapter, spec: QueueSpec, what: str) -> None:
    """Raise :class:`.ArgumentError` if the session sees only some of the tasks that ``what`` is for."""
    if is_restricted(session, adapter, spec):
        raise ArgumentError(
            f"{what} is for all tasks of {spec.entity.__name__}, of which this session sees only some, because of its"
            " criteria or row-level security: use a session that sees all of them"
        )


def _options_shown(
    session: Session, spec: QueueSpec, options: Sequence[ExecutableOption]
) -> Sequence[ExecutableOption]:
    """Return ``options`` together with those that the session's listeners add."""
    seen: list[ExecutableOption] = []

    def end(state: ORMExecuteState) -> IteratorResult[Any]:
        seen.extend(options_of(state.statement))
        return IteratorResult(SimpleResultMetaData([]), iter(()))

    event.listen(session, "do_orm_execute", end)  # runs last: a session's listeners run after those of its class
    try:
        # a listener that executes the statement itself, for sharding or caching, gets no rows
        session.execute(
            select(spec.entity).where(false()).options(*options),
            execution_options={"autoflush": False},  # the flush follows when the transaction's isolation level is set
            bind_arguments=spec.bind_arguments,
        )
    finally:
        event.remove(session, "do_orm_execute", end)
    return seen
