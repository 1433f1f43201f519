"""The dashboard as a separate program, with a token instead of an application's users."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Collection

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from .._support.errors import ArgumentError
from .._support.texts import logger_of
from .access import Action, Decision, Viewer, same_origin, strict_headers
from .actions import fields_of
from .rendering import templates
from .site import links_of, theme_of

SHORTEST = 16
"""Minimum characters of a token: shorter ones can be guessed."""
COOKIE = "sqlqueue_dashboard"
SECURE = f"__Host-{COOKIE}"
"""The cookie of browsers that use TLS: only this host can have set it, and only over TLS."""
LASTS = 12 * 3_600
"""Seconds for which a login is valid."""
DELAY = 0.5
"""Seconds by which a wrong token delays all attempts that follow; twice as many with each further one."""
LONGEST_DELAY = 8.0
QUIET = 300.0
"""Seconds without wrong tokens after which the delay is short again."""
LINE = 20
"""The maximum number of attempts that wait for others."""
logger = logger_of("sqlqueue.dashboard")


class Token:
    """Admits viewers with a token, which is sent as a bearer token or entered in the login form, which sets a cookie.

    The cookie contains a random number that is valid only for this process, never the token.
    """

    def __init__(self, token: str, may: Collection[Action]) -> None:
        if len(token) < SHORTEST:
            raise ArgumentError(f"the token has {len(token)} characters: give at least {SHORTEST}, at random")
        self._attempts = _Attempts(token)
        self._viewer = Viewer("token", frozenset(may))
        self._logins: dict[str, float] = {}

    async def __call__(self, request: Request) -> Decision:
        """Return the viewer; redirect people without a login to the form, and respond to programs with 401."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._attempts.are_too_many:
                return _busy()
            return self._viewer if await self._attempts.is_right(given, request) else _challenge()
        if self._logins.get(_login_in(request), 0) > time.monotonic():
            request.state.can_log_out = True
            return self._viewer
        if request.method != "GET":
            return None
        link = links_of(request)
        # a scraper would parse the form as metrics
        is_page = "text/html" in request.headers.get("accept", "") and request.scope["path"] != link("metrics")
        return RedirectResponse(link("login"), 303) if is_page else _challenge()

    async def login(self, request: Request) -> Response:
        """Show the login form, or check the token that was entered there."""
        if request.method != "POST":
            return _form(request)
        given = (await fields_of(request)).get("token", "")
        if self._attempts.are_too_many:
            return _busy()
        if not await self._attempts.is_right(given, request):
            return _form(request, failed=True)
        id, now = secrets.token_urlsafe(32), time.monotonic()
        self._logins = {each: until for each, until in self._logins.items() if until > now} | {id: now + LASTS}
        response = RedirectResponse(links_of(request)(), 303)
        # browsers name their origin with each POST: behind a TLS proxy, this server sees http
        secure = request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https://")
        name = SECURE if secure else COOKIE
        response.set_cookie(name, id, max_age=LASTS, httponly=True, samesite="strict", secure=secure)
        return response

    async def logout(self, request: Request) -> Response:
        """End the login of a browser."""
        self._logins.pop(_login_in(request), None)
        response = RedirectResponse(links_of(request)("login"), 303)
        for name in (SECURE, COOKIE):
            response.delete_cookie(name, secure=name == SECURE, httponly=True, samesite="strict")
        return response


class _Attempts:
    """Checks tokens one after another: each wrong one delays those that wait, from whatever address they come, and is
    logged."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._wrong = 0
        self._last = 0.0

    @property
    def are_too_many(self) -> bool:
        return self._waiting >= LINE

    async def is_right(self, given: str, request: Request) -> bool:
        """Return whether this is the token."""
        self._waiting += 1
        try:
            async with self._turn:
                if hmac.compare_digest(given.encode(), self._token):
                    return True
                now = time.monotonic()
                self._wrong = 1 if now - self._last > QUIET else self._wrong + 1
                self._last = now
                logger.warning("wrong token from %s", _address(request))
                await asyncio.sleep(min(DELAY * 2 ** min(self._wrong - 1, 10), LONGEST_DELAY))
                return False
        finally:
            self._waiting -= 1


def _address(request: Request) -> str:
    """Return the address of the client, and the one that it, if it is a proxy, says that it has forwarded for."""
    address = "an unknown address" if request.client is None else request.client.host
    forwarded = request.headers.get("x-forwarded-for", "")[:200]
    return f"{address} (forwarded for {forwarded})" if forwarded else address


def _login_in(request: Request) -> str:
    return request.cookies.get(SECURE) or request.cookies.get(COOKIE, "")


def with_login(dashboard: ASGIApp, token: Token) -> ASGIApp:
    """Return a dashboard that ``token`` protects, with its login form."""
    routes = [
        Route("/login", token.login, methods=["GET", "POST"]),
        Route("/logout", token.logout, methods=["POST"]),
        Mount("/", dashboard),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(strict_headers), Middleware(same_origin)])
    app.router.redirect_slashes = False  # it would redirect to the Host header, which is not trusted
    return app


def _challenge() -> Response:
    text = "Send the token in a header: Authorization: Bearer TOKEN\n"
    return PlainTextResponse(text, 401, headers={"WWW-Authenticate": "Bearer"})


def _busy() -> Response:
    return PlainTextResponse("Too many attempts are waiting. Try again later.\n", 429, headers={"Retry-After": "10"})


def _form(request: Request, *, failed: bool = False) -> Response:
    html = templates.get_template("login.html").render(link=links_of(request), theme=theme_of(request), failed=failed)
    return HTMLResponse(html, 403 if failed else 200)
