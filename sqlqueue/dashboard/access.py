"""The actions of viewers, and who is admitted: nobody, unless the application decides otherwise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response


class Action(StrEnum):
    """An action that a viewer may be permitted to perform."""

    RETRY = "retry"
    """Retry failed and hung tasks."""
    RERUN = "rerun"
    """Run final tasks again."""
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


ON_TASKS = frozenset({Action.RETRY, Action.RERUN, Action.RUN_NOW, Action.CANCEL, Action.DISCARD})
ON_WORKERS = frozenset({Action.DRAIN_WORKERS, Action.STOP_WORKERS, Action.SET_CONCURRENCY})
ON_QUEUES = frozenset(Action) - ON_WORKERS


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who sees the dashboard."""

    name: str
    """The name that is logged with each action, and stored as ``paused_by``."""
    may: Collection[Action] = frozenset()
    """The actions that are permitted; none by default."""
    scope: Hashable = None
    """What this viewer's sessions are restricted to, such as the id of a tenant.

    Viewers with equal scopes share what pages have read: their sessions must see the same rows, and ``redact`` and
    ``link`` must return the same for them.  With the default, ``None``, that must hold for all viewers.
    """


Decision: TypeAlias = Viewer | Response | None
Authorize: TypeAlias = Callable[[Request], Decision | Awaitable[Decision]]

_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_OF_PROXIES = re.compile(
    r"(x-)?forwarded.*|via|x-real-ip|x-original-.*|.*-client-ip|cf-.*|cdn-.*|fly-.*|x-envoy-.*|x-amzn-.*"
)
_NOBODY = """\
This dashboard admits nobody, because it was created without authorize=.

Give it a function that is called with each request, and that returns a Viewer for
people whom your application's own login has identified, and None for others:

    from sqlqueue.dashboard import Dashboard, Viewer

    Dashboard(Session, Base, authorize=authorize)

On a development machine, this admits the browsers on it:

    from sqlqueue.dashboard import Dashboard, only_this_machine

    Dashboard(Session, Base, authorize=only_this_machine)
"""


async def decide(authorize: Authorize, request: Request) -> Decision:
    """Return the result of ``authorize``; plain functions run in a thread, because they may query a database."""
    decision: Any = (
        authorize(request) if inspect.iscoroutinefunction(authorize) else await _threaded(authorize, request)
    )
    found: Decision = await decision if inspect.isawaitable(decision) else decision
    return found


async def _threaded(authorize: Callable[[Request], Any], request: Request) -> Any:
    """Call ``authorize`` in a thread, and keep the context variables that it sets, such as the tenant of sessions."""
    context = copy_context()
    decision = await run_in_threadpool(context.run, authorize, request)
    for variable, value in context.items():
        if variable.get(context) is not value:
            variable.set(value)
    return decision


def nobody(request: Request) -> Response:
    """Refuse everyone, and tell the developer what to write."""
    return PlainTextResponse(_NOBODY, 403)


def only_this_machine(request: Request) -> Viewer | None:
    """An ``authorize`` for development: programs on this machine may read, but not change anything.

    Not for machines with a proxy, nor for those that several people use: with a proxy on the same machine, *every*
    request comes from the loopback address. Requests with a header that proxies add are refused, and so are requests
    for a host other than ``localhost``, ``127.0.0.1`` or ``[::1]``, as in DNS rebinding; but a proxy may add no header
    and send one of these hosts, as nginx does by default.
    """
    if request.client is None or not _is_loopback(request.client.host):
        return None
    if any(_OF_PROXIES.fullmatch(name) for name in request.headers):
        return None
    hosts = request.headers.getlist("host")
    is_local = len(hosts) == 1 and _LOCAL_HOST.fullmatch(hosts[0]) is not None
    return Viewer("this machine") if is_local else None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
