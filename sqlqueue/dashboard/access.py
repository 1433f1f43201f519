"""Who may see and do what: viewers and their permissions, requests from elsewhere, columns that are not shown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Enum, String, select
from sqlalchemy.orm import Session, load_only
from sqlalchemy.sql.base import ExecutableOption
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._support.errors import ArgumentError
from .._support.texts import logger_of
from ..dialects.base import Adapter
from ..operations.filtering import column
from ..operations.paging import Damaged
from ..queue.spec import Identity, QueueSpec, spec_of
from .rendering import told

# -- checks of each request before a page handles it: permission, the same origin for writes, and strict headers ------

logger = logger_of("sqlqueue.dashboard")

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # not no-referrer, because browsers would send forms with "Origin: null"
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE = frozenset({"GET", "HEAD"})


def strict_headers(app: ASGIApp) -> ASGIApp:
    """Middleware that sends :data:`HEADERS` with each response that does not set them itself."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_strictly)

    return called


def same_origin(app: ASGIApp) -> ASGIApp:
    """Middleware that rejects writes that a page of another site could have triggered (CSRF)."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE or _is_same_origin(Headers(scope=scope)):
            await app(scope, receive, send)
            return
        logger.warning("refused a request from another origin: %s", scope["method"])
        response = PlainTextResponse("This request did not come from a page of this dashboard.\n", 403)
        await response(scope, receive, send)

    return called


def _is_same_origin(headers: Headers) -> bool:
    """Return whether the browser reports the same origin; false if it sends neither header."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("host", "").lower()
    # a proxy may have ended TLS: this server does not know the scheme that the browser uses
    return host != "" and headers.get("origin", "").lower() in (f"http://{host}", f"https://{host}")


def permission(app: ASGIApp, authorize: Authorize) -> ASGIApp:
    """Middleware that calls ``authorize`` for each request, and stores the viewer as ``request.state.viewer``.

    The style sheet and the script are public: error pages use them too.
    """

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_static(scope):
            request = Request(scope)
            decision = await decide(authorize, request)
            if not isinstance(decision, Viewer):
                refusal = decision or PlainTextResponse("You are not allowed to view this dashboard.\n", 403)
                await refusal(scope, receive, send)
                return
            request.state.viewer = decision
        await app(scope, receive, send)

    return called


def is_static(scope: Scope) -> bool:
    """Return whether the request is for the style sheet or the script."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith("/static/")


# -- the actions of viewers, and who is admitted: nobody, unless the application decides otherwise --------------------


class Action(StrEnum):
    """An action that a viewer may be permitted to perform."""

    RETRY = "retry"
    """Retry failed and abandoned tasks."""
    RERUN = "rerun"
    """Run final tasks again."""
    RUN_NOW = "run-now"
    """Make waiting tasks due at once."""
    SET_PRIORITY = "set-priority"
    """Change the priority of tasks that have not begun."""
    SET_TIME = "set-time"
    """Change when tasks that have not begun are due."""
    EDIT = "edit"
    """Change the columns that ``editable`` of the dashboard names, of tasks that are neither running nor completed."""
    CANCEL = "cancel"
    """Cancel unfinished tasks."""
    DISCARD = "discard"
    """Discard unfinished tasks."""
    PAUSE = "pause"
    """Pause a queue, a topic or a key."""
    RESUME = "resume"
    """Resume it."""
    SET_LIMIT = "set-limit"
    """Change how many tasks of a key may run at once."""
    SET_RATE = "set-rate"
    """Change how many tasks of a key may start within a time."""
    RESCHEDULE = "reschedule"
    """Change the schedules of recurring tasks, and restart those that were stopped."""
    UNSCHEDULE = "unschedule"
    """Stop recurring tasks: end their recurrence."""
    DRAIN_WORKERS = "drain-workers"
    """Make workers finish their running tasks and exit."""
    STOP_WORKERS = "stop-workers"
    """Make workers exit as on SIGTERM."""
    SET_CONCURRENCY = "set-concurrency"
    """Change how many calls of each handler workers run at a time."""
    RELEASE_WORKERS = "release-workers"
    """Release the tasks of silent workers."""

    @property
    def label(self) -> str:
        """The text of its buttons."""
        labels = {Action.RERUN: "Run again", Action.UNSCHEDULE: "Stop"}
        return labels.get(self) or self.value.replace("-", " ").capitalize()


ON_WORKERS = frozenset({Action.DRAIN_WORKERS, Action.STOP_WORKERS, Action.SET_CONCURRENCY, Action.RELEASE_WORKERS})
ON_QUEUES = frozenset(Action) - ON_WORKERS - {Action.EDIT}


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


# -- which columns of the application's models the dashboard shows, and how -------------------------------------------

Columns: TypeAlias = Mapping[type[Any], Sequence[str]]
Redact: TypeAlias = Callable[[Any, str, Any], object]
Link: TypeAlias = Callable[[Any], str | None]

CELL = 2_000
"""The maximum number of characters that are read of a value for a row of a table, which shows fewer."""
LONGEST = 100_000
"""The maximum number of characters of a value on the page of its task."""
DATA = frozenset({"arguments", "headers", "payload", "result"})
"""Columns of the queue that hold the application's data."""


_INPUTS = frozenset({None, "arguments", "headers", "payload"})
"""The roles of columns that may be editable; ``None``: the application's own."""
FILTERED = ("task", "stage", "limit_key", "message_key", "unique_key")
"""Columns of kinds of queues by which tasks can be filtered, as by their topic."""


def shortened(text: str, longest: int) -> str:
    """Return ``text``, or its beginning with an ellipsis."""
    return text if len(text) <= longest else f"{text[:longest]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The columns, filters and functions that the application has configured, beyond the queue's own columns."""

    columns: Columns
    filters: Columns
    editable: Columns
    redact: Redact | None
    link: Link | None

    def __post_init__(self) -> None:
        for named in (self.columns, self.filters, self.editable):
            for model, names in named.items():
                if isinstance(names, str):
                    raise ArgumentError(f"{names!r}: give a list of attribute names for {model.__name__}")
                for name in names:
                    column(spec_of(model), name)
        for model, names in self.editable.items():
            spec = spec_of(model)
            own = {attribute: role for role, attribute in spec.attributes.items()}
            for name in names:
                stored = column(spec, name)
                is_of_task = any(stored is each for each in spec.table.columns) and own.get(name) in _INPUTS
                if not is_of_task or any(stored is each for each in spec.primary_key):
                    raise ArgumentError(f"editable: {name} of {model.__name__} is a key, or a column of the queue")

    def own(self, spec: QueueSpec, task: object) -> dict[str, Any]:
        """Return the queue's columns of ``task``, by role, without those that hold the application's data."""
        return {role: getattr(task, name) for role, name in spec.attributes.items() if role not in DATA}

    def named(
        self, spec: QueueSpec, task: object, cut: Mapping[str, Any], longest: int, *, indent: int | None = None
    ) -> dict[str, str | None]:
        """Return the columns that the application names, by attribute, redacted, and as text of at most ``longest``
        characters.  ``cut``: what :meth:`texts` has read for ``task``; ``indent``: that of JSON."""
        names = self.columns.get(spec.entity, ())
        values = {name: cut[name] if name in cut else getattr(task, name) for name in names}
        if self.redact is not None and isinstance(task, Damaged):  # the application's function expects a task
            values = dict.fromkeys(names, "(its row cannot be read)")
        elif self.redact is not None:
            values = {name: self.redact(task, name, value) for name, value in values.items()}
        texts = {name: None if value is None else told(value, indent) for name, value in values.items()}
        return {name: None if text is None else shortened(text, longest) for name, text in texts.items()}

    def loading(self, spec: QueueSpec, roles: Collection[str]) -> ExecutableOption:
        """Return the option to load what pages show of a task: the queue's columns ``roles``, and those columns that
        the application names and that :meth:`texts` does not read.  Others may be large."""
        own = [spec.attributes[role] for role in roles if role in spec.attributes and role not in DATA]
        texts = self._texts(spec)
        named = [name for name in self.columns.get(spec.entity, ()) if name not in texts]
        return load_only(*(getattr(spec.entity, name) for name in (*own, *named)))

    def texts(
        self, adapter: Adapter, session: Session, spec: QueueSpec, keys: Sequence[Identity], longest: int
    ) -> dict[Identity, dict[str, str | None]]:
        """Return the texts of the columns that the application names, for each of these tasks, by attribute.

        The database cuts them after ``longest`` characters, and one more.  Returns nothing if a row cannot be read.
        """
        texts, length = self._texts(spec), len(spec.primary_key)
        if not texts or not keys:
            return {}
        cut = [adapter.types.beginning(each, longest + 1).label(name) for name, each in texts.items()]
        whole = select(*spec.primary_key, *cut).select_from(spec.mapper.persist_selectable)
        read = whole.where(adapter.rows.key_in(spec, keys))
        try:
            rows: Any = adapter.rows.execute(session, spec, read).all()
        except Exception as error:
            if not adapter.connections.is_of_row(error):
                raise
            return {}
        return {tuple(row[:length]): dict(zip(texts, row[length:], strict=True)) for row in rows}

    def _texts(self, spec: QueueSpec) -> dict[str, ColumnElement[Any]]:
        """Return the columns of plain text that the application names, by attribute.

        Types of the application, which may decode a text, are given the whole.
        """
        named = {name: column(spec, name) for name in self.columns.get(spec.entity, ())}
        return {
            name: each
            for name, each in named.items()
            if isinstance(each.type, String) and not isinstance(each.type, Enum)
        }

    def editable_of(self, spec: QueueSpec) -> Sequence[str]:
        """Return the attributes that the application permits to be changed."""
        return self.editable.get(spec.entity, ())

    def filters_of(self, spec: QueueSpec) -> Sequence[str]:
        """Return the attributes by which tasks can be filtered: those of the queue's kind, and those by which the
        application permits it."""
        own = [spec.attributes[role] for role in FILTERED if role in spec.attributes]
        return list(dict.fromkeys([*own, *self.filters.get(spec.entity, ())]))

    def link_to(self, task: object) -> str | None:
        """Return the URL of the application's own page for ``task``, if it is safe to follow."""
        found = None if self.link is None or isinstance(task, Damaged) else self.link(task)
        return found if found is not None and found.startswith(("https://", "http://", "/")) else None
