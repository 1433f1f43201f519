"""What all requests of a mounted dashboard share: its queues, its database, and the changes that are under way."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import quote, urlencode

from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .._support.errors import ArgumentError, ConfigurationError
from .._support.texts import key_text, logger_of
from ..dialects import adapter_for
from ..model.declaration import Target, specs_of
from ..operations import Batch, FlowNode
from ..queue.spec import QueueSpec, spec_of
from .access import Action, Exposure, Viewer
from .rendering import templates

if TYPE_CHECKING:
    from ..worker import Sessions

R = TypeVar("R")

# -- calls functions with a session for the dashboard, from a sessionmaker or an async_sessionmaker -------------------


class SessionRunner:
    """Calls functions with sessions of a ``sessionmaker`` or ``async_sessionmaker``.

    Raises :class:`.ArgumentError` for others.
    """

    def __init__(self, sessions: Sessions) -> None:
        if not isinstance(sessions, sessionmaker) and type(sessions).__name__ != "async_sessionmaker":
            kinds = "neither a sessionmaker nor an async_sessionmaker"
            raise ArgumentError(f"{sessions!r} is {kinds}, as in Dashboard(Session)")
        self._sessions: Any = sessions

    async def run(self, work: Callable[[Session], R]) -> R:
        """Call ``work`` with a new session, commit what it left uncommitted, and return its result."""
        if isinstance(self._sessions, sessionmaker):
            return await run_in_threadpool(self._run, work)
        async with self._sessions() as session:
            result: R = await session.run_sync(_committed, work)
            return result

    def _run(self, work: Callable[[Session], R]) -> R:
        with self._sessions() as session:
            return _committed(session, work)


def _committed(session: Session, work: Callable[[Session], R]) -> R:
    result = work(session)
    session.commit()
    return result


# -- the results that pages show, read once for all viewers of this process, and only on request ----------------------

MAX_SNAPSHOTS = 200
"""The maximum number of snapshots; each is a page with some filter."""
MAX_CHARACTERS = 20_000_000
"""The maximum length of the text of all snapshots together."""
TIMES = 200
"""A snapshot is kept for this many times as long as it took to read, so that reading it takes at most 0.5 % of the
time."""
LONGEST = 15.0
"""The longest time, in seconds, for which a snapshot is kept because it took long to read."""
RECENT = 15.0
"""The time after a change, in seconds, in which its effects are watched: snapshots are kept more briefly."""
_BRIEFLY = 6
"""How many times as briefly."""


@dataclass(slots=True)
class _Snapshot:
    value: Any
    until: float
    size: int


class Snapshots:
    """Keeps results for some seconds; viewers who request them in the meantime, or while they are being read, share
    them.

    Results that took long to read are kept longer, so that viewers do not slow the queue down.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Snapshot] = {}
        self._underway: dict[Hashable, asyncio.Task[Any]] = {}
        self._changes = 0
        self._changed_at = -RECENT

    async def get(self, key: Hashable, read: Callable[[], Awaitable[R]], lifetime: float) -> R:
        """Return what ``read`` returned at most ``lifetime`` seconds ago, or call it.  Failures are not kept.

        A result that took long to read is used for up to :data:`LONGEST` seconds, except soon after a change.
        """
        snapshot = self._kept.get(key)
        if snapshot is not None and snapshot.until > time.monotonic():
            return cast(R, snapshot.value)
        task = self._underway.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._underway[key] = asyncio.create_task(self._read(key, read, lifetime))
        return cast(R, await asyncio.shield(task))  # so that a viewer who leaves does not cancel the read for others

    def forget(self) -> None:
        """Drop all snapshots, because something has changed."""
        self._changes += 1
        self._changed_at = time.monotonic()
        self._kept.clear()
        self._underway.clear()

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[R]], lifetime: float) -> R:
        before, began = self._changes, time.monotonic()
        try:
            value = await read()
        finally:
            if self._changes == before:
                self._underway.pop(key, None)
        if self._changes != before:
            return value
        now = time.monotonic()
        until = now + max(lifetime, min((now - began) * TIMES, LONGEST))
        if now - self._changed_at < RECENT:
            until = now + max(lifetime / _BRIEFLY, now - began)
        self._keep(key, _Snapshot(value, until, len(repr(value))))
        return value

    def _keep(self, key: Hashable, snapshot: _Snapshot) -> None:
        """Add a snapshot, and drop those that have expired; then the oldest ones, until the rest is small enough."""
        kept, now = self._kept, time.monotonic()
        self._kept = {each: old for each, old in kept.items() if old.until > now and each != key} | {key: snapshot}
        while len(self._kept) > MAX_SNAPSHOTS or sum(each.size for each in self._kept.values()) > MAX_CHARACTERS:
            del self._kept[next(iter(self._kept))]


# -- changes to many tasks, which run in this process, in batches that each commit. Pages show their progress ---------

logger = logger_of("sqlqueue.dashboard")
MAX_CHANGES = 100
"""The maximum number of changes that are kept."""
SOON = 1.0
"""Seconds that a request waits for its change, so that most changes are finished when the page is shown."""


@dataclass(slots=True, kw_only=True)
class Change:
    """A change, running or finished."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    what: str
    """A description: ``retry 3 tasks of Email``."""
    by: Viewer
    total: int | None
    """The number of tasks counted beforehand; ``None`` if counting stopped at the cap."""
    changed: int = 0
    taken: int = 0
    """The number of tasks that could not be changed because another task has their ``unique_key``."""
    state: Literal["running", "done", "stopped", "failed"] = "running"
    stop: bool = False
    """Whether to stop after the current batch."""
    ended_at: float = field(default_factory=time.monotonic)
    """When it ended, or its last batch; by the clock of this process."""

    @property
    def is_watched(self) -> bool:
        """Whether it is running or has ended just now, so that pages refresh sooner than usual."""
        return self.state == "running" or time.monotonic() - self.ended_at < RECENT


class Changes:
    """The changes of this process."""

    def __init__(self) -> None:
        self._known: dict[str, Change] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, id: str | None, by: Viewer) -> Change | None:
        """Return the change with this id, if this viewer started it."""
        change = self._known.get(id or "")
        is_own = change is not None and (change.by.name, change.by.scope) == (by.name, by.scope)
        return change if is_own else None

    async def begin(self, change: Change, work: Coroutine[Any, Any, None]) -> None:
        """Start the ``work`` of a change, and wait up to a second for it to finish."""
        self._remember(change)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=SOON)

    def _remember(self, change: Change) -> None:
        over = [each.id for each in self._known.values() if each.state != "running"]
        for id in over[: max(len(self._known) - MAX_CHANGES + 1, 0)]:
            del self._known[id]
        self._known[change.id] = change


# -- the state that all pages of a dashboard share --------------------------------------------------------------------

CAP = 10_000
"""The maximum number of tasks counted in each group of states."""
LIFETIME = 3.0
"""Seconds for which viewers of one scope share results."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A dashboard's queues, its database, and what its viewers may see and do."""

    target: Target
    database: SessionRunner
    exposure: Exposure
    title: str
    most: timedelta
    """The time limit of each statement."""
    scope: Hashable = None
    """The scope of the viewer whose request is served: only viewers with equal scopes share results."""
    snapshots: Snapshots = field(default_factory=Snapshots)
    changes: Changes = field(default_factory=Changes)

    @property
    def queues(self) -> Mapping[str, QueueSpec]:
        """The queues of tasks, by the full name of their table."""
        return {spec.name: spec for spec in specs_of(self.target) if spec.holds_tasks}

    @property
    def first(self) -> QueueSpec:
        """One of the queues, for queries that concern all of them."""
        return next(iter(self.queues.values()))

    @property
    def pages(self) -> list[tuple[str, tuple[str, ...]]]:
        """The pages to which each page links: text and path."""
        roles = {role for spec in self.queues.values() for role in spec.columns}
        kinds: list[tuple[str, tuple[str, ...]]] = [(text, (path,)) for text, path, role in _BY_ROLE if role in roles]
        return [("Overview", ()), ("Errors", ("errors",)), ("Workers", ("workers",)), *kinds]

    def queue(self, request: Request) -> QueueSpec:
        """Return the queue that the path names; 404 if there is none."""
        spec = self.queues.get(request.path_params["queue"])
        if spec is None:
            raise HTTPException(404, "There is no such queue.")
        return spec

    async def change(self, work: Callable[[Session], R]) -> R:
        """Run ``work``, drop the snapshots, and return its result; 400 if the library rejects it."""
        try:
            return await self.database.run(work)
        except (ArgumentError, ConfigurationError, ValueError) as error:
            raise HTTPException(400, str(error)) from error
        finally:
            self.snapshots.forget()

    async def begin(self, change: Change, batches: Callable[[Session], Iterable[Batch]]) -> None:
        """Start a change, and wait up to a second for it to finish."""
        await self.changes.begin(change, self._carry_out(change, batches))

    async def _carry_out(self, change: Change, batches: Callable[[Session], Iterable[Batch]]) -> None:
        by = change.by.name
        logger.info("%s: %s", by, change.what)

        def work(session: Session) -> None:
            for batch in batches(session):
                change.changed += batch.changed
                change.taken += batch.taken
                if change.stop:
                    return

        try:
            await self.database.run(work)
            change.state = "stopped" if change.stop else "done"
        except Exception:
            change.state = "failed"
            logger.exception("%s: %s failed after %d tasks", by, change.what, change.changed)
        finally:
            change.ended_at = time.monotonic()
            self.snapshots.forget()
        logger.info("%s: %s: %s, %d tasks changed", by, change.what, change.state, change.changed)

    async def read(
        self, key: Hashable, read: Callable[[Session], R], spec: QueueSpec, *, lifetime: float = LIFETIME
    ) -> R:
        """Return the result of ``read`` for this scope, which may be a few seconds old; each of its statements has a
        time limit."""
        run = partial(self.database.run, self.time_limited(read, spec))
        return await self.snapshots.get((self.scope, key), run, lifetime)

    def time_limited(self, read: Callable[[Session], R], spec: QueueSpec) -> Callable[[Session], R]:
        """Return ``read`` with a time limit for each of its statements, on engines that support one."""

        def run(session: Session) -> R:
            connection = session.connection(spec.bind_arguments)
            with adapter_for(connection.dialect).connections.time_limit(connection, self.most):
                return read(session)

        return run

    async def read_each(
        self,
        name: str,
        read: Callable[[Session, QueueSpec], R],
        specs: Sequence[QueueSpec],
        *,
        lifetime: float = LIFETIME,
    ) -> list[R]:
        """Return the result of ``read`` for each queue, in the order of ``specs``; a few are read at a time."""
        few = asyncio.Semaphore(4)

        async def one(spec: QueueSpec) -> R:
            async with few:
                return await self.read((name, spec), lambda session: read(session, spec), spec, lifetime=lifetime)

        return await asyncio.gather(*map(one, specs))


_BY_ROLE = (
    ("Schedules", "schedules", "schedule"),
    ("Limits", "limits", "limit_key"),
    ("Outbox", "outbox", "message_key"),
    ("Pipelines", "pipelines", "stage"),
    ("Batches", "batches", "reports_to"),
)
"""The pages of some kinds of queues: the text of the link, the path, and a column that these queues have."""


def site_of(request: Request) -> Site:
    """Return the site that serves a request, with the scope of its viewer."""
    site: Site = request.app.state.site
    return replace(site, scope=viewer_of(request).scope)


def viewer_of(request: Request) -> Viewer:
    """Return the viewer that the permission check found."""
    viewer: Viewer = request.state.viewer
    return viewer


def links_of(request: Request) -> Callable[..., str]:
    """Return a function that makes paths below the prefix at which the request's dashboard is mounted.

    Without a host: the Host header is not trusted.
    """
    root = request.scope.get("root_path", "").rstrip("/")

    def link(*parts: str, **query: str | Sequence[str] | None) -> str:
        """Return the path of these parts, with the non-empty parameters as its query."""
        path = "/".join([root, *(quote(part, safe="") for part in parts)]) if parts else f"{root}/"
        given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
        return f"{path}?{urlencode(given, doseq=True)}" if given else path

    return link


def places_of(request: Request) -> Callable[[FlowNode, str | None], str | None]:
    """Return a function that returns the page of a node of a graph, of the batch with a key, if there is one."""
    site, link = site_of(request), links_of(request)

    def place(node: FlowNode, batch: str | None) -> str | None:
        if node.entity is None:
            is_batch = node.key is not None and not {"open", "closed"} & node.states.keys()
            return link("batch", key=node.key) if is_batch else None
        spec = spec_of(node.entity)
        if spec.name not in site.queues:
            return None
        if node.identity is not None:
            return link("queue", spec.name, "task", key=key_text(node.identity))
        return link("queue", spec.name, batch=batch)

    return place


THEME = "sqlqueue_theme"
"""The cookie with the colours that the viewer has chosen."""
THEMES = ("light", "dark")


def theme_of(request: Request) -> str:
    """Return the colours that the viewer has chosen, or nothing: then those of the system are used."""
    theme = request.cookies.get(THEME, "")
    return theme if theme in THEMES else ""


def respond(request: Request, template: str, *, status: int = 200, **content: Any) -> Response:
    """Render a page; respond with 304 if the viewer already has it."""
    site, viewer = site_of(request), viewer_of(request)
    asked = request.query_params.get("change")
    rest = [(name, text) for name, text in request.query_params.multi_items() if name != "change"]
    html = templates.get_template(template).render(
        site=site,
        viewer=viewer,
        Action=Action,
        link=links_of(request),
        theme=theme_of(request),
        here=request.scope["path"],
        can_log_out=getattr(request.state, "can_log_out", False),
        change=site.changes.find(asked, viewer),
        is_change_asked=bool(asked),
        without_change=f"?{urlencode(rest)}",  # without the path, which could name another host: //example.org/
        pages=site.pages,
        **content,
    )
    etag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return HTMLResponse(html, status, headers={"ETag": etag})
