"""The ASGI application."""

from __future__ import annotations

from datetime import timedelta
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .._support.errors import SQLQueueError
from .._support.texts import logger_of
from ..model.declaration import Target, specs_of
from . import access, actions, flows, pages, tasks
from .access import Authorize, Columns, Exposure, Link, Redact, is_static, nobody
from .site import SessionRunner, Site, respond

if TYPE_CHECKING:
    from ..worker import Sessions

logger = logger_of("sqlqueue.dashboard")
_STATIC = {path.name: path.read_bytes() for path in Path(__file__).with_name("static").iterdir() if path.is_file()}


class Dashboard:
    """The dashboard, an ASGI application to mount under any path: ``app.mount("/queues", Dashboard(Session, Base))``.

    - ``sessions``: a ``sessionmaker`` or ``async_sessionmaker``.
    - ``target``: a declarative base, its ``MetaData``, or a single queue model, as for :func:`.check`; the dashboard
      shows the queues that it has at the time of a request.
    - ``authorize``: a function or coroutine function that is called with each request, and returns a :class:`.Viewer`
      with the actions that are permitted; ``None`` to deny access; or a response, such as a redirect to a login page.
      Without it, nobody is admitted; for development there is :func:`.only_this_machine`.
    - ``columns``: the attributes of the application's models to show besides the queue's own columns, by model; none by
      default. Columns with the application's data, such as ``payload``, ``arguments`` and ``result``, are shown only if
      named here.
    - ``filters``: the attributes that tasks can be filtered by, and that a search looks into, by model, besides the
      queue's own columns; none by default. They should be indexed.
    - ``editable``: the attributes that viewers with :attr:`Action.EDIT` may change in tasks that are neither running
      nor completed, by model; none by default. The form shows their values without ``redact``.
    - ``redact``: called with a task, the name of an attribute in ``columns`` and its value; returns what to show
      instead. By default, values are shown as they are. It is not given the viewer, because viewers of one scope share
      the result, and of a long text only the beginning: 2,000 characters in tables, 100,000 on the page of a task.
    - ``link``: called with a task; returns the URL of the application's own page for it, or ``None``, as by default.
    - ``title``: the heading of all pages, ``Queues`` by default.
    - ``statement_limit``: the longest time that a statement of a page may take; 5 seconds by default.

    Pages read the database only when they are requested, and viewers share the results for three seconds: if sessions
    see different rows for different viewers, these must have different scopes, see :class:`.Viewer`.  ``/metrics``
    serves figures of all queues for Prometheus, read at most every 15 seconds (extra ``prometheus``).  Every action is
    logged to ``sqlqueue.dashboard`` with the viewer's name.  Raises :class:`.ArgumentError` for invalid arguments.
    """

    def __init__(
        self,
        sessions: Sessions,
        target: Target,
        *,
        authorize: Authorize | None = None,
        columns: Columns | None = None,
        filters: Columns | None = None,
        editable: Columns | None = None,
        redact: Redact | None = None,
        link: Link | None = None,
        title: str = "Queues",
        statement_limit: timedelta = timedelta(seconds=5),
    ) -> None:
        specs_of(target)
        self._app = Starlette(
            routes=_ROUTES,
            middleware=[
                Middleware(access.strict_headers),
                Middleware(access.same_origin),
                Middleware(access.permission, authorize=authorize or nobody),
            ],
            exception_handlers={
                HTTPException: _refused,
                SQLQueueError: _failed,
                DataError: _unsuitable,
                SQLAlchemyError: _failed,
                OSError: _failed,
            },
        )
        self._app.router.redirect_slashes = False  # it would redirect to the Host header, which is not trusted
        self._app.state.site = Site(
            target=target,
            database=SessionRunner(sessions),
            exposure=Exposure(
                columns=columns or {}, filters=filters or {}, editable=editable or {}, redact=redact, link=link
            ),
            title=title,
            most=statement_limit,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request; WebSockets are not supported."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._app(scope, receive, send)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    return Response(_STATIC[name], media_type=guess_type(name)[0])


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if is_static(request.scope):  # which everyone may request: there is no viewer to show a page to
        return PlainTextResponse(f"{error.detail}\n", error.status_code, headers=error.headers)
    return respond(request, "problem.html", status=error.status_code, problem=error.detail)


async def _unsuitable(request: Request, error: Exception) -> Response:
    assert isinstance(error, DataError)
    logger.warning("%s failed: %s", request.scope["path"], error.orig)
    text = "The database rejected a value of this request, such as a number that is too large for its column."
    return respond(request, "problem.html", status=400, problem=text)


async def _failed(request: Request, error: Exception) -> Response:
    """Respond without the error's text, which may contain host names, accounts and values."""
    logger.error("%s failed", request.scope["path"], exc_info=error)
    text = "The database did not respond or rejected the request. See the log of this server process for details."
    return respond(request, "problem.html", status=503, problem=text)


_ROUTES = [
    Route("/", pages.show_overview),
    Route("/errors", pages.show_errors),
    Route("/schedules", pages.show_schedules),
    Route("/limits", pages.show_limits),
    Route("/workers", pages.show_workers),
    Route("/workers/confirm/{action}", actions.confirm_command),
    Route("/workers/{action}", actions.send_command, methods=["POST"]),
    Route("/search", tasks.show_search),
    Route("/metrics", pages.show_metrics),
    Route("/outbox", pages.show_outboxes),
    Route("/pipelines", pages.show_pipelines),
    Route("/batches", flows.show_batches),
    Route("/batch", flows.show_batch),
    Route("/queue/{queue}", tasks.show_queue),
    Route("/queue/{queue}/task", tasks.show_task),
    Route("/queue/{queue}/edit", actions.edit, methods=["GET", "POST"]),
    Route("/queue/{queue}/confirm/{action}", actions.confirm),
    Route("/queue/{queue}/{action}", actions.act, methods=["POST"]),
    Route("/changes/{id}/stop", actions.stop, methods=["POST"]),
    Route("/theme", actions.choose_theme, methods=["POST"]),
    Route("/static/{name}", _static),
]
