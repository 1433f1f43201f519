"""Durable steps of a handler: those that have run are recorded in the row of their task, and do not run again."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, overload

from sqlalchemy import select
from sqlalchemy.orm import Session

from .._support.checks import check_json, duration
from .._support.checks import key as checked_key
from .._support.errors import ArgumentError, ClaimLostError
from ..operations.placing import payload_of
from ..operations.settling import keep_steps
from ..sql import utcnow
from .jobs import Job, Signal, Snooze, Wait

R = TypeVar("R")
_is_in_transaction: ContextVar[bool] = ContextVar("sqlqueue.is_in_step", default=False)
MOST = 1_000
"""The maximum number of steps of a task."""
LARGEST = 2**20
"""The maximum size of what a task keeps of its steps, in bytes of JSON."""
LONGEST = 200
"""The maximum length of a step's name."""


class Transact(Protocol):
    """Commits what ``work`` does with a new session, and what ``writing`` adds for its result.

    The commit happens while the context of ``writing`` is open.  After a deadlock, everything is done again.
    """

    def __call__(
        self,
        job: Job,
        work: Callable[[Any, Session], R],
        writing: Callable[[Session, R], AbstractContextManager[None]],
        /,
    ) -> R: ...


class Turns(AbstractContextManager[None]):
    """A context that one thread, or one of the greenlets that await coroutines, enters at a time."""

    def __init__(self, *, is_async: bool) -> None:
        self._lock = asyncio.Lock() if is_async else threading.Lock()

    def __enter__(self) -> None:
        taken = self._lock.acquire()
        if inspect.isawaitable(taken):
            from sqlalchemy.util import await_only  # noqa: PLC0415

            await_only(taken)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Steps:
    """The durable steps of one task, passed to a handler ``(steps, task)`` of a :class:`.StepMixin`."""

    def __init__(self, job: Job, transact: Transact) -> None:
        self._job = job
        self._transact = transact
        self._kept: Mapping[str, Any] = job.steps or {"id": None, "steps": {}}
        self._begun: set[str] = set()
        self._pause: Signal | None = None
        self._lock = threading.Lock()
        self._turns = Turns(is_async=job.handler.is_coroutine)
        """Held while a step is recorded and committed: each writes what all have recorded."""

    @overload
    def run(self, name: str, function: Callable[[], R], /) -> R: ...
    @overload
    def run(self, name: str, function: Callable[[Any], R], /) -> R: ...
    def run(self, name: str, function: Callable[..., Any], /) -> Any:
        """Call ``function`` and record its result under ``name``; if an earlier attempt has, return that.

        If it takes a session, it gets a new one: its writes, the record and the fence are one commit, so they take
        effect exactly once.  It is called again after a deadlock.  If it takes nothing, no transaction is open
        meanwhile; it runs at least once: a process that dies before the record is committed repeats it.

        The result is JSON, and is returned as JSON stores it: a tuple is a list.  An exception is recorded nowhere, and
        is raised.

        Raises :class:`.ArgumentError` for a name that has been used in this run, for more than 1,000 steps or 1 MiB of
        results, and for a result that is not JSON; and :class:`.ClaimLostError`, with nothing committed, if the task
        belongs to another worker by now.
        """
        found = self._begin(name, "result")
        if found is not None:
            return found["result"]
        if _takes_session(function):
            return self._record(name, lambda handed, _: {"result": _plain(_within(function, handed))})["result"]
        result = _plain(_called(function))
        return self._record(name, lambda *_: {"result": result})["result"]

    def sleep(self, name: str, delay: timedelta, /) -> None:
        """Go on ``delay`` after the first call under this name, by the clock of the database.

        Until then, the task is scheduled, and nothing runs: this raises :class:`.Snooze`, which gives the worker back
        and counts no attempt; let it pass.  The handler is then called again from its beginning.
        """
        duration("delay", delay)
        found = self._begin(name, "until")
        if found is None:
            self._record(name, lambda _, session: {"until": self._later(session, delay).isoformat()})
        else:
            delay = self._rest(found["until"])
        if delay > timedelta(0):
            self._pause = Snooze(delay)
            raise self._pause

    def wait(self, name: str, event: str, /, *, timeout: timedelta | None = None) -> Any:
        """Wait until :func:`.open_event` is called with the key ``event``, and return its payload; or ``None``, once
        ``timeout`` has passed since the first call under this name.  What comes first wins, for good.

        Either side may come first.  Until then, the task is ``waiting``, and nothing runs: this raises a signal, which
        gives the worker back and counts no attempt; let it pass.  The handler is then called again from its beginning.

        ``event`` may also be the key of a batch (:func:`.batch`), for instance of one that a step before has enqueued;
        the result is then how many of its members have ended in which way: ``{"completed": 20, "discarded": 1, ...}``.

        The model also derives from :class:`.FlowMixin`.  Raises :class:`.ArgumentError` for a batch that cannot end
        before this task does, such as its own.
        """
        if timeout is not None:
            duration("timeout", timeout)
        before = found = self._begin(name, "event")
        if found is None or "payload" not in found:
            found = self._record(name, lambda _, session: self._listened(session, before, event, timeout))
        if "payload" in found:
            return found["payload"]
        self._pause = Wait(event, timeout if before is None else found["until"] and self._rest(found["until"]))
        raise self._pause

    def key(self, name: str, /) -> str:
        """Return a key for ``name`` that is the same in all attempts at this task, and in no other task, to pass to a
        service that recognizes repeated requests.

        It is committed by the first call for the task: call this outside of functions that take a session.  ``rerun``
        begins with new ones.
        """
        checked_key("name", name, LONGEST)
        self._check()
        if self._kept["id"] is None:
            self._record(None, lambda *_: {"id": secrets.token_hex(8)})
        return f"{self._kept['id']}-{name}"

    def end(self) -> None:
        """Raise what :meth:`sleep` or :meth:`wait` has raised, if the handler has caught that and returned."""
        if self._pause is not None:
            raise self._pause

    def _listened(
        self, session: Session, before: Mapping[str, Any] | None, event: str, timeout: timedelta | None
    ) -> Mapping[str, Any]:
        """Return what is recorded of a step that waits: with a payload if it has ended."""
        is_open, payload = payload_of(session, self._job.handler.spec, event, self._job.latch)
        if is_open:
            return {"event": event, "payload": payload}
        if before is None:
            return {"event": event, "until": timeout and self._later(session, timeout).isoformat()}
        if before["until"] is not None and self._left(before["until"]) <= timedelta(0):
            return {"event": event, "payload": None}
        return before

    def _left(self, until: str) -> timedelta:
        """Return the time from the claim until a moment."""
        return datetime.fromisoformat(until) - (self._job.claim.claimed_at or datetime.now(UTC))

    def _rest(self, until: str) -> timedelta:
        """Return the time from now until a moment, which usually was past already at the claim."""
        if (left := self._left(until)) <= timedelta(0):
            return left
        now = self._transact(self._job, lambda _, session: self._later(session, timedelta(0)), lambda *_: nullcontext())
        return max(datetime.fromisoformat(until) - now, timedelta(0))

    def _later(self, session: Session, delay: timedelta) -> datetime:
        bind_arguments = self._job.handler.spec.bind_arguments
        moment: datetime = session.execute(select(utcnow(delay)), bind_arguments=bind_arguments).scalar_one()
        return moment

    def _check(self) -> None:
        self.end()
        if _is_in_transaction.get():
            raise ArgumentError("steps do not nest: a function that takes a session is one step, of one transaction")
        if self._job.is_lost:
            raise ClaimLostError([self._job.claim])

    def _begin(self, name: str, kind: str) -> Mapping[str, Any] | None:
        """Return what is recorded of a step; ``None`` if nothing."""
        checked_key("name", name, LONGEST)
        self._check()
        with self._lock:
            if name in self._begun:
                raise ArgumentError(f"step {name!r} has run before in this call: give each step a name of its own")
            self._begun.add(name)
        found: Mapping[str, Any] | None = self._kept["steps"].get(name)
        if found is None and len(self._kept["steps"]) >= MOST:
            raise ArgumentError(f"step {name!r}: a task has at most {MOST:,} steps; enqueue other tasks for more")
        if found is not None and kind not in found:
            raise ArgumentError(f"step {name!r} was of another kind when it ran: give it another name")
        return found

    def _record(self, name: str | None, work: Callable[[Any, Session], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Commit what ``work`` does, and what it returns: the entry of the step ``name``, or else the id."""
        return self._transact(self._job, work, lambda session, entry: self._writing(session, name, entry))

    @contextmanager
    def _writing(self, session: Session, name: str | None, entry: Mapping[str, Any]) -> Iterator[None]:
        with self._turns:
            kept = self._kept
            if name is not None:
                kept = {**kept, "steps": {**kept["steps"], name: entry}}
            elif kept["id"] is None:
                kept = {**kept, **entry}
            size = len(json.dumps(kept))
            if size > LARGEST:
                raise ArgumentError(
                    f"step {name!r}: the results of the steps would take {size:,} bytes of at most {LARGEST:,}:"
                    " store them in a table of your own, and return their keys"
                )
            keep_steps(session, self._job.claim, kept)
            yield
            self._kept = kept


class AsyncSteps:
    """:class:`Steps` for a coroutine handler ``(steps, task)``, whose functions are coroutine functions."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    @overload
    async def run(self, name: str, function: Callable[[], Awaitable[R]], /) -> R: ...
    @overload
    async def run(self, name: str, function: Callable[[Any], Awaitable[R]], /) -> R: ...
    async def run(self, name: str, function: Callable[..., Any], /) -> Any:
        """See :meth:`Steps.run`; the session is an asyncio session."""
        return await _spawn(self._steps.run, name, function)

    async def sleep(self, name: str, delay: timedelta, /) -> None:
        """See :meth:`Steps.sleep`."""
        await _spawn(self._steps.sleep, name, delay)

    async def wait(self, name: str, event: str, /, *, timeout: timedelta | None = None) -> Any:
        """See :meth:`Steps.wait`."""
        return await _spawn(partial(self._steps.wait, timeout=timeout), name, event)

    async def key(self, name: str, /) -> str:
        """See :meth:`Steps.key`."""
        found: str = await _spawn(self._steps.key, name)
        return found


async def _spawn(function: Callable[..., Any], *arguments: Any) -> Any:
    from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

    return await greenlet_spawn(function, *arguments)


def _within(function: Callable[..., Any], handed: Any) -> Any:
    token = _is_in_transaction.set(True)
    try:
        return _called(function, handed)
    finally:
        _is_in_transaction.reset(token)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    result = function(*arguments)
    if inspect.isawaitable(result):
        from sqlalchemy.util import await_only  # noqa: PLC0415

        return await_only(result)
    return result


def _plain(result: object) -> Any:
    check_json("result", result)
    return json.loads(json.dumps(result))


def _takes_session(function: Callable[..., Any]) -> bool:
    if not callable(function):
        raise ArgumentError(f"{function!r} is not a function: give one that takes nothing, or a session")
    empty, variable = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        every = inspect.signature(function).parameters.values()
    except ValueError:
        raise ArgumentError(f"{function!r} does not tell what it takes: call it in a lambda") from None
    needed = [each for each in every if each.default is empty and each.kind not in variable]
    if len(needed) > 1 or any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in needed):
        raise ArgumentError(f"a step takes nothing, or a session, not {inspect.signature(function)}")
    return bool(needed)
