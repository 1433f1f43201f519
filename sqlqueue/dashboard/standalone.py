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

from .._support.exc import ArgumentError
from .access import Action, Decision, Viewer
from .forms import fields_of
from .rendering import templates
from .security import SameOrigin, StrictHeaders
from .site import links_of

SHORTEST = 16
"""Minimum characters of a token: shorter ones can be guessed."""
COOKIE = "sqlqueue_dashboard"
LASTS = 12 * 3_600
"""Seconds for which a login is valid."""
_DELAY = 0.5


class Token:
    """Admits viewers with a token, which is sent as a bearer token or entered in the login form, which sets a cookie.

    The cookie contains a random number that is valid only for this process, never the token.
    """

    def __init__(self, token: str, may: Collection[Action]) -> None:
        if len(token) < SHORTEST:
            raise ArgumentError(f"the token has {len(token)} characters: give at least {SHORTEST}, at random")
        self._token = token.encode()
        self._viewer = Viewer("token", frozenset(may))
        self._logins: dict[str, float] = {}

    def __call__(self, request: Request) -> Decision:
        """Return the viewer; redirect people without a login to the form, and respond to programs with 401."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._viewer if self._is_token(given) else _challenge()
        until = self._logins.get(request.cookies.get(COOKIE, ""), 0)
        if until > time.monotonic():
            return self._viewer
        if request.method != "GET":
            return None
        link = links_of(request)
        # a scraper would parse the form as metrics
        is_page = "text/html" in request.headers.get("accept", "") and request.url.path != link("metrics")
        return RedirectResponse(link("login"), 303) if is_page else _challenge()

    async def login(self, request: Request) -> Response:
        """Show the login form, or check the token that was entered there."""
        if request.method != "POST":
            return _form(request)
        if not self._is_token((await fields_of(request)).get("token", "")):
            await asyncio.sleep(_DELAY)
            return _form(request, failed=True)
        id, now = secrets.token_urlsafe(32), time.monotonic()
        self._logins = {each: until for each, until in self._logins.items() if until > now} | {id: now + LASTS}
        response = RedirectResponse(links_of(request)(), 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, id, max_age=LASTS, httponly=True, samesite="strict", secure=secure)
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def with_login(dashboard: ASGIApp, token: Token) -> ASGIApp:
    """Return a dashboard that ``token`` protects, with its login form."""
    routes = [Route("/login", token.login, methods=["GET", "POST"]), Mount("/", dashboard)]
    return Starlette(routes=routes, middleware=[Middleware(StrictHeaders), Middleware(SameOrigin)])


def _challenge() -> Response:
    text = "Send the token in a header: Authorization: Bearer TOKEN\n"
    return PlainTextResponse(text, 401, headers={"WWW-Authenticate": "Bearer"})


def _form(request: Request, *, failed: bool = False) -> Response:
    html = templates.get_template("login.html").render(link=links_of(request), failed=failed)
    return HTMLResponse(html, 403 if failed else 200)
