"""Checks of each request before a page handles it: permission, the same origin for writes, and strict headers."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._support.logs import logger_of
from .access import Authorize, Viewer, decide

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


class StrictHeaders:
    """Middleware that sends :data:`HEADERS` with each response that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_strictly)


class SameOrigin:
    """Middleware that rejects writes that a page of another site could have triggered (CSRF)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE or _is_same_origin(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        logger.warning("refused a request from another origin: %s", scope["method"])
        response = PlainTextResponse("This request did not come from a page of this dashboard.\n", 403)
        await response(scope, receive, send)


def _is_same_origin(headers: Headers) -> bool:
    """Return whether the browser reports the same origin; false if it sends neither header."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("host", "").lower()
    # a proxy may have ended TLS: this server does not know the scheme that the browser uses
    return host != "" and headers.get("origin", "").lower() in (f"http://{host}", f"https://{host}")


class Permission:
    """Middleware that calls ``authorize`` for each request, and stores the viewer as ``request.state.viewer``.

    The style sheet and the script are public: error pages use them too.
    """

    def __init__(self, app: ASGIApp, authorize: Authorize) -> None:
        self._app = app
        self._authorize = authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_static(scope):
            request = Request(scope)
            decision = await decide(self._authorize, request)
            if not isinstance(decision, Viewer):
                await _refusal(decision)(scope, receive, send)
                return
            request.state.viewer = decision
        await self._app(scope, receive, send)


def is_static(scope: Scope) -> bool:
    """Return whether the request is for the style sheet or the script."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith("/static/")


def _refusal(decision: Response | None) -> Response:
    return PlainTextResponse("You are not allowed to view this dashboard.\n", 403) if decision is None else decision
