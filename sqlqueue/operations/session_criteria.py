"""Which rows a session may see at all: the criteria that it adds to each SELECT of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import event, false, select
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.sql.base import ExecutableOption

from ..queue.spec import Criterion, QueueSpec, Where


def scope_of(session: Session, spec: QueueSpec, options: Sequence[ExecutableOption] = ()) -> tuple[Criterion, ...]:
    """What ``with_loader_criteria`` demands of the rows of this queue: in ``options``, or added by ``do_orm_execute``.

    The ORM adds such criteria to its own SELECT of an entity alone, while the statements of this library are about the
    table.  So the session's listeners are shown such a SELECT, which is not executed.
    """
    if session.dispatch.do_orm_execute:
        options = _options_shown(session, spec, options)
    return tuple(_criteria(spec, options))


def within(session: Session, spec: QueueSpec, where: Sequence[Where] = ()) -> tuple[Where, ...]:
    """``where``, and :func:`scope_of` the session."""
    return (*where, *scope_of(session, spec))


def _options_shown(
    session: Session, spec: QueueSpec, options: Sequence[ExecutableOption]
) -> Sequence[ExecutableOption]:
    """``options``, and what the session's listeners add to them."""
    seen: list[ExecutableOption] = []

    def end(state: ORMExecuteState) -> IteratorResult[Any]:
        seen.extend(state.statement._with_options)
        return IteratorResult(SimpleResultMetaData([]), iter(()))

    event.listen(session, "do_orm_execute", end)  # the last: what a session itself has comes after what its class has
    try:
        # a listener that executes it by itself, as those of shards and caches do, finds nothing
        session.execute(
            select(spec.entity).where(false()).options(*options),
            execution_options={"autoflush": False},  # that comes with the transaction, whose isolation level is chosen
            bind_arguments=spec.bind_arguments,
        )
    finally:
        event.remove(session, "do_orm_execute", end)
    return seen


def _criteria(spec: QueueSpec, options: Sequence[ExecutableOption]) -> Iterator[Criterion]:
    found: dict[Any, list[Any]] = {}
    for option in options:
        if getattr(option, "_is_criteria_option", False):
            option.get_global_criteria(found)  # type: ignore[attr-defined]
    for option in found.get(("additional_entity_criteria", spec.mapper), ()):
        yield option._resolve_where_criteria(spec.mapper)
