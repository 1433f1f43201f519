"""The actions of viewers, and the default permission: programs on the same machine may view, but not change
anything."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response


class Action(StrEnum):
    """An action that a viewer may be permitted to perform."""

    RETRY = "retry"
    """Retry failed and hung tasks."""
    RUN_NOW = "run-now"
    """Make waiting tasks due at once."""
    CANCEL = "cancel"
    """Cancel unfinished tasks."""
    DISCARD = "discard"
    """Discard unfinished tasks."""
    PAUSE = "pause"
    """Pause a queue or a topic."""
    RESUME = "resume"
    """Resume it."""
    SET_LIMIT = "set-limit"
    """Change how many tasks of a key may run at once."""
    RESCHEDULE = "reschedule"
    """Change the schedules of recurring tasks."""
    DRAIN_WORKERS = "drain-workers"
    """Make workers finish their running tasks and exit."""
    STOP_WORKERS = "stop-workers"
    """Make workers exit as on SIGTERM."""
    SET_CONCURRENCY = "set-concurrency"
    """Change how many calls of each handler workers run at a time."""


ON_TASKS = frozenset({Action.RETRY, Action.RUN_NOW, Action.CANCEL, Action.DISCARD})
ON_WORKERS = frozenset({Action.DRAIN_WORKERS, Action.STOP_WORKERS, Action.SET_CONCURRENCY})
ON_QUEUES = frozenset(Action) - ON_WORKERS


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who sees the dashboard."""

    name: str
    """The name that is logged with each action, and stored as ``paused_by``."""
    may: Collection[Action] = frozenset()
    """The actions that are permitted; none by default."""


Decision: TypeAlias = Viewer | Response | None
Authorize: TypeAlias = Callable[[Request], Decision | Awaitable[Decision]]

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


async def decide(authorize: Authorize, request: Request) -> Decision:
    """Return the result of ``authorize``; plain functions run in a thread, because they may query a database."""
    decision: Any = (
        authorize(request) if inspect.iscoroutinefunction(authorize) else await _threaded(authorize, request)
    )
    found: Decision = await decision if inspect.isawaitable(decision) else decision
    return found


async def _threaded(authorize: Callable[[Request], Any], request: Request) -> Any:
    return await run_in_threadpool(authorize, request)


def only_loopback(request: Request) -> Viewer | None:
    """Allow programs on the same machine to read, but not to change anything.

    Rejects requests that a proxy has forwarded, and requests for another host name, as in DNS rebinding.
    """
    client = request.client
    if client is None or not _is_loopback(client.host):
        return None
    if any(name in request.headers for name in _FORWARDED):
        return None
    host = request.headers.get("host", "").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return Viewer("loopback") if name in _LOCAL_NAMES else None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
