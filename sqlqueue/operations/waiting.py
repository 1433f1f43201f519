"""Waits until tasks have ended, in short transactions, with pauses in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.texts import key_text
from ..model.declaration import QueueMixin, T
from ..queue.options import FINAL
from ..queue.spec import Identity, QueueSpec
from ..sql import is_final
from ..transaction import open_, row_of, within
from .paging import find
from .recording import spoken

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker

SHORTEST, LONGEST = 0.02, 1.0
"""Seconds between two looks: first, and after the pauses have grown."""
_NAMED = 3


@overload
def wait_for(sessions: sessionmaker[Any], tasks: T, /, *, timeout: timedelta) -> T: ...
@overload
def wait_for(sessions: sessionmaker[Any], tasks: Iterable[T], /, *, timeout: timedelta) -> list[T]: ...
@overload
def wait_for(sessions: async_sessionmaker[Any], tasks: T, /, *, timeout: timedelta) -> Coroutine[Any, Any, T]: ...
@overload
def wait_for(
    sessions: async_sessionmaker[Any], tasks: Iterable[T], /, *, timeout: timedelta
) -> Coroutine[Any, Any, list[T]]: ...
def wait_for(sessions: Any, tasks: Any, /, *, timeout: timedelta) -> Any:
    """Wait until a task, or all of several, are completed, cancelled or discarded; return them, in the same order, as
    detached instances that show how they ended, with their results (:class:`.ResultMixin`).

    ``sessions``: a ``sessionmaker``; with an ``async_sessionmaker``, await the call.  Each look at the database is a
    transaction of its own, of one statement for all tasks of a model.  Between them, nothing is held; the pauses grow
    from 20 milliseconds to a second, and begin anew each time that a task has ended.  Nothing notifies about ends,
    which therefore cost no more if somebody waits for them.

    The tasks are committed instances of any session; they may have expired or be detached, and are not changed.

    Raises :class:`TimeoutError` if some have not ended after ``timeout``, and :class:`.ArgumentError` for a task that
    has not been flushed, that has no row because it is not committed or was deleted, or whose model deletes it when it
    is completed.
    """
    _check_maker(sessions)
    waiting = _Waiting([tasks] if isinstance(tasks, QueueMixin) else tasks, duration("timeout", timeout, zero=True))
    is_one = isinstance(tasks, QueueMixin)
    if not hasattr(sessions(), "run_sync"):
        for seconds in waiting.pauses():
            time.sleep(seconds)
            with sessions() as session:
                waiting.look(session)
        return waiting.ended[0] if is_one else waiting.ended

    async def wait() -> Any:
        for seconds in waiting.pauses():
            await asyncio.sleep(seconds)
            async with sessions() as session:
                await session.run_sync(waiting.look)
        return waiting.ended[0] if is_one else waiting.ended

    return wait()


def _check_maker(sessions: object) -> None:
    if not callable(sessions):
        raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker")


class _Waiting:
    """Tasks that are waited for, and those of them that have ended."""

    def __init__(self, tasks: Iterable[Any], timeout: timedelta) -> None:
        if not isinstance(tasks, Iterable):
            raise ArgumentError(f"tasks={tasks!r}: give a task, or an iterable of tasks")
        self._rows = [row_of(task) for task in tasks]
        self._timeout = timeout
        self._ended: dict[tuple[QueueSpec, Identity], Any] = {}
        self._left: dict[tuple[QueueSpec, Identity], str] = dict.fromkeys(self._rows, "")
        """The tasks that have not ended, with their last known status."""
        for spec, _ in self._rows:
            if spec.options.on_complete == "delete":
                name = spec.entity.__name__
                raise ArgumentError(
                    f"{name} deletes its rows on completion: to wait for one, choose on_complete='keep'"
                )

    @property
    def ended(self) -> list[Any]:
        """The tasks, all of which have ended, in their order."""
        return [self._ended[row] for row in self._rows]

    def pauses(self) -> Iterator[float]:
        """Yield the seconds to wait before each look, until all tasks have ended."""
        until, pause = time.monotonic() + self._timeout.total_seconds(), 0.0
        while self._left:
            number, now = len(self._left), time.monotonic()
            yield min(pause, max(until - now, 0.0))
            if self._left and now + pause >= until:
                raise TimeoutError(self._complaint())
            pause = min(max(pause * 1.5, SHORTEST), LONGEST) if len(self._left) == number else SHORTEST

    def look(self, session: Session) -> None:
        """Read the states of all tasks, and load those that have ended since."""
        for spec in {spec: None for spec, _ in self._left}:
            adapter = open_(session, spec)
            keys = [key for each, key in self._left if each is spec]
            for some in adapter.rows.batches(spec, keys):
                named = adapter.rows.key_in(spec, some)
                read = select(*spec.primary_key, spec["status"]).where(*within(session, spec, (named,)))
                rows: Any = adapter.rows.execute(session, spec, adapter.rows.by_key(spec, read))
                self._saw(spec, some, {tuple(key): str(status) for *key, status in rows})
        for spec in {spec: None for spec, _ in self._left}:
            adapter = open_(session, spec)
            final = [key for (each, key), status in self._left.items() if each is spec and status in FINAL]
            for some in adapter.rows.batches(spec, final):
                for task in find(session, spec.entity, adapter.rows.key_in(spec, some), is_final(spec)):
                    self._ended[spec, spec.identity_of(task)] = task
                    del self._left[spec, spec.identity_of(task)]

    def _saw(self, spec: QueueSpec, keys: Sequence[Identity], statuses: dict[Identity, str]) -> None:
        for key in keys:
            if key not in statuses:
                name = f"{spec.entity.__name__} {key_text(key)}"
                raise ArgumentError(f"{name} has no row: it is not committed yet, or was deleted")
            self._left[spec, key] = statuses[key]

    def _complaint(self) -> str:
        shown = [f"{spec.name} {key_text(key)} is {status}" for (spec, key), status in self._left.items()][:_NAMED]
        more = [f"and {len(self._left) - _NAMED} more"] if len(self._left) > _NAMED else []
        number = f"{len(self._left)} of {len(set(self._rows))} tasks have not ended after {spoken(self._timeout)}"
        return f"{number}: {', '.join([*shown, *more])}"
