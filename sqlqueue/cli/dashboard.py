"""The command ``sqlqueue dashboard``."""

from __future__ import annotations

import secrets
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from sqlalchemy import URL, create_engine
from sqlalchemy.orm import sessionmaker

from ..diagnostics.check import specs_of
from ._database import parsed, prepared, refusals
from ._output import refusal, say
from ._target import Target, Url, load

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ACTION",
        help="Allow an action: retry, rerun, run-now, cancel, discard, pause, resume, set-limit, reschedule,"
        " drain-workers, stop-workers, set-concurrency, or all. May be repeated. By default, nothing can be changed.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="SQLQUEUE_DASHBOARD_TOKEN",
        help=(
            "The token to log in with, 16 characters or more; by default, a random one is printed. Prefer the"
            " environment variable: other users can see command lines."
        ),
    ),
]


def dashboard(
    target: Target,
    *,
    url: Url,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    allow: Allow = None,
    token: Token = None,
) -> None:
    """Serve a dashboard of the queues: their tasks, errors, schedules and limits, in a browser.

        sqlqueue dashboard --url postgresql+psycopg://me@host/shop shop.models:Base --allow retry --allow pause

    Viewers log in with a token: the one in SQLQUEUE_DASHBOARD_TOKEN, or a random one, which is printed at the start and
    is valid until the command ends. It listens on the loopback address; if you let it listen on others, put a TLS proxy
    in front of it.

    Applications can mount the dashboard instead and use their own user accounts: see the documentation of
    sqlqueue.dashboard.

    Exit status: 0 once it is stopped; 2 for bad usage.
    """
    if any(find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn")):
        raise refusal("the dashboard needs an extra: pip install 'sqlalchemy-queue[dashboard]'")
    import uvicorn  # noqa: PLC0415

    with refusals("dashboard"):
        used = secrets.token_urlsafe(24) if token is None else token
        app = _application(load(target), url, allow or [], used)
        say(f"http://{host if ':' not in host else f'[{host}]'}:{port}/  (Ctrl-C stops it)")
        if token is None:
            say(f"Log in with the token {used}")
        # proxy headers are not trusted: with them, a request could claim to come from any address
        uvicorn.run(app, host=host, port=port, log_level="warning", proxy_headers=False, server_header=False)


def _application(target: Any, url: str, allow: list[str], token: str) -> ASGIApp:
    from ..dashboard import Dashboard  # noqa: PLC0415
    from ..dashboard.standalone import Token, with_login  # noqa: PLC0415

    specs_of(target)
    protection = Token(token, _actions(allow))
    return with_login(Dashboard(_sessions(url), target, authorize=protection), protection)


def _actions(names: list[str]) -> list[Any]:
    from ..dashboard import Action  # noqa: PLC0415

    if "all" in names:
        return list(Action)
    try:
        return [Action(name) for name in names]
    except ValueError as error:
        raise refusal(f"--allow: {error}; the actions are {', '.join(Action)}, all") from error


def _sessions(url: str) -> Any:
    where, is_async = parsed(url)
    return _async_sessions(where) if is_async else sessionmaker(prepared(create_engine(where)))


def _async_sessions(url: URL) -> Any:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: PLC0415

    engine = create_async_engine(url)
    prepared(engine.sync_engine)
    return async_sessionmaker(engine)
