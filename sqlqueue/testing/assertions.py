"""Assertions about waiting tasks."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy.orm import Session

from .._support.exc import ArgumentError
from ..functions import TaskFunction
from ..functions.task import J
from ..model.mixins import T
from ..operations.finding import Damaged, find_all
from ..queue.spec import QUEUE_ROLES, QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.states import state
from ..transaction.connection import AnySession, session_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

_WAITING = (Status.AVAILABLE, Status.SCHEDULED, Status.RETRYABLE)
_SHOWN = 10


@overload
def assert_enqueued(
    session: AnySession, what: type[T], /, *where: Where, count: int | None = ..., **values: object
) -> list[T]: ...
@overload
def assert_enqueued(
    session: AnySession,
    what: TaskFunction[..., ..., Any, J],
    /,
    *where: Where,
    count: int | None = ...,
    **values: object,
) -> list[J]: ...
@overload
def assert_enqueued(
    session: AsyncSession | async_scoped_session[Any],
    what: type[T],
    /,
    *where: Where,
    count: int | None = ...,
    **values: object,
) -> Coroutine[Any, Any, list[T]]: ...
@overload
def assert_enqueued(
    session: AsyncSession | async_scoped_session[Any],
    what: TaskFunction[..., ..., Any, J],
    /,
    *where: Where,
    count: int | None = ...,
    **values: object,
) -> Coroutine[Any, Any, list[J]]: ...
def assert_enqueued(session: Any, what: Any, /, *where: Where, count: int | None = None, **values: object) -> Any:
    """Assert that matching tasks are waiting, and return them.

    ``what``: a model, with ``values`` of its attributes; or a task function made by :meth:`.Worker.task`, with
    ``values`` of its arguments.  ``where``: criteria, as for a claim.  ``count``: the exact number, 0 for none; by
    default at least one.  Waiting tasks are available, scheduled or retryable, as this session's transaction sees them.

    Rows that cannot be read do not count.

    Raises :class:`AssertionError`, which lists the waiting tasks, if the number is different, and
    :class:`.ArgumentError` for unknown attributes or arguments.
    """
    if hasattr(session, "run_sync"):
        return session.run_sync(_assert_enqueued, what, where, count, values)
    return _assert_enqueued(session_of(session), what, where, count, values)


def _assert_enqueued(
    session: Session, what: Any, where: Sequence[Where], count: int | None, values: dict[str, object]
) -> list[Any]:
    spec = spec_of(what.entity if isinstance(what, TaskFunction) else what)
    waits = spec["status"].in_([state(status) for status in _WAITING])
    waiting: Sequence[Any] = find_all(session, spec.entity, waits, *where)
    if isinstance(what, TaskFunction):
        waiting = [job for job in waiting if getattr(job, spec.attributes["task"]) == what.name]
        found = [job for job in _readable(waiting) if _has(what, what.arguments_of(job), values)]
    else:
        found = [
            task for task in _readable(waiting) if _has(spec.entity.__name__, _shown(spec, task, all_=True), values)
        ]
    if len(found) == count or (count is None and found):
        return found
    name = what.name if isinstance(what, TaskFunction) else spec.entity.__name__
    raise AssertionError(_complaint(spec, f"{name}({_listed(values)})", count, len(found), waiting))


def _readable(waiting: Sequence[Any]) -> list[Any]:
    return [task for task in waiting if not isinstance(task, Damaged)]


def _has(of: object, given: dict[str, Any], values: dict[str, object]) -> bool:
    unknown = sorted(values.keys() - given.keys())
    if unknown:
        raise ArgumentError(f"{of} has no {', '.join(unknown)}")
    return all(given[name] == value for name, value in values.items())


def _shown(spec: QueueSpec, task: object, *, all_: bool = False) -> dict[str, Any]:
    bookkeeping = {spec.attributes[role] for role in QUEUE_ROLES if role not in ("status", "available_at")}
    names = (prop.key for prop in spec.mapper.column_attrs)
    return {name: getattr(task, name) for name in names if all_ or name not in bookkeeping}


def _complaint(spec: QueueSpec, wanted: str, count: int | None, found: int, waiting: Sequence[Any]) -> str:
    number = "at least one" if count is None else str(count)
    lines = [f"expected {number} of {wanted}: {found} waiting ({len(waiting)} in total)"]
    for task in waiting[:_SHOWN]:
        lines.append(f"  {spec.entity.__name__}({_listed(_shown(spec, task))})")
    return "\n".join([*lines, "  ..."] if len(waiting) > _SHOWN else lines)


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
