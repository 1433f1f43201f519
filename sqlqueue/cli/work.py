"""The commands ``work``, ``dashboard`` and ``sql-tasks``, which run until they are stopped."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from .._support.errors import ArgumentError
from ..model.declaration import specs_of
from ..sqltasks import SQLTaskScheduler, read_config
from ..worker import (
    LogFormat,
    ProcessLimits,
    Worker,
    log_to_stderr,
    supervise,
)
from ..worker.probes import LARGEST_PORT, Address, address_of, serve_health
from ._database import parsed, prepared, refusals
from ._options import Target, Url, called, load, names_of
from ._output import complain, refusal, say

if TYPE_CHECKING:
    from starlette.types import ASGIApp


# -- the command `sqlqueue work` --------------------------------------------------------------------------------------


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except ArgumentError as error:
        raise refusal(str(error)) from error


WorkerTargets = Annotated[
    list[str],
    typer.Argument(
        metavar="MODULE:WORKER",
        help="The application's sqlqueue.Worker, such as myapp.jobs:worker, or several. The current directory is on the"
        " import path. The module must import all handlers.",
    ),
]
OnlyQueues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="Serve only this queue, by the name of its model or table; may be repeated. Default: all queues of the"
        " worker's handlers.",
    ),
]
Reload = Annotated[
    bool, typer.Option("--reload", help="For development: replace the processes when the application's code changes.")
]
Processes = Annotated[
    int, typer.Option("--processes", "-p", metavar="N", min=1, max=256, help="Number of processes of each worker.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log each task, not only problems.")]


LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Level = Annotated[
    LogLevel | None,
    typer.Option("--log-level", case_sensitive=False, help="Log nothing below this level. Default: info."),
]
Format = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="How to write log lines. Default: text."),
]


class _Logging(NamedTuple):
    """The options about log lines."""

    level: LogLevel | None
    form: LogFormat | None
    verbose: bool

    def set_up(self) -> bool:
        """Log to standard error, the application's messages too.  Returns whether the application has configured
        logging itself, in the module of its worker, which has to be imported before."""
        if self.verbose:
            logging.getLogger("sqlqueue").setLevel(logging.DEBUG)
        return not log_to_stderr(self.form or LogFormat.TEXT, self.level)


Health = Annotated[
    Address | None,
    typer.Option(
        "--health",
        metavar="ADDRESS",
        parser=_address,
        help="Serve /health, /ready and /metrics over HTTP on this port; further processes use the following ports."
        " Binds to the loopback address unless a host is given: 0.0.0.0:8080 in a container, [::1]:8080.",
    ),
]


MaxTasks = Annotated[
    int | None,
    typer.Option("--max-tasks", metavar="N", min=1, help="Replace a process once it has run N tasks or a few more."),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        "--max-memory",
        metavar="MIB",
        min=1,
        help="Replace a process once it occupies more than MIB mebibytes of memory, not counting its child processes.",
    ),
]

ReplaceStalled = Annotated[
    bool,
    typer.Option("--replace-stalled", help="Kill and replace a process whose event loop stands still for 30 seconds."),
]

AppVersion = Annotated[
    str | None,
    typer.Option("--app-version", metavar="TEXT", help="The application's version, shown by sqlqueue workers."),
]


def work(
    targets: WorkerTargets,
    processes: Processes = 1,
    queues: OnlyQueues = None,
    verbose: Verbose = False,
    *,
    health: Health = None,
    log_level: Level = None,
    log_format: Format = None,
    max_tasks: MaxTasks = None,
    max_memory: MaxMemory = None,
    replace_stalled: ReplaceStalled = False,
    reload: Reload = False,
    app_version: AppVersion = None,
) -> None:
    """Run workers: claim tasks and call their handlers, until stopped.

        sqlqueue work myapp.jobs:worker --processes 4
        sqlqueue work myapp.jobs:worker myapp.jobs:relay
        sqlqueue work myapp.jobs:worker --queue email --queue invoice

    Each worker, such as the application's own and the relay of its outbox, runs in processes of its own. With --queue,
    several commands share the queues of a worker, for example to give one of them more processes.

    SIGTERM or Ctrl-C: claims nothing more and gives running handlers the worker's grace period; the remaining tasks are
    released, and other workers may claim them at once. A second one does not wait. While the database cannot be
    reached, the worker keeps trying.

    With --health 8080, http://127.0.0.1:8080/health answers 200 while the worker's event loop runs, and 503 when only a
    new process would help; /ready answers 200 while the worker also reaches its database. Both report the worker's
    activity as JSON, without authentication. /metrics serves Prometheus, with the extra prometheus. In a container,
    where probes come from outside, use --health 0.0.0.0:8080.

    A process that dies is replaced, after a pause that grows each time. The tasks that it had not started are released
    at once; those that it was running are suspects, which run alone from then on.

    With --max-tasks or --max-memory, a process that has reached the limit stops as on SIGTERM, so that nothing is lost
    and no attempt counts, and is replaced at once.

    Log lines go to standard error, those of the application too, and those of handlers with their task; --log-format
    json writes one object a line. If the module of the worker configures logging, all of it is left to the application,
    except for a level that is given here.

    A process whose event loop stands still, because a coroutine blocks it, says so in its log, with the stack. It
    claims nothing, and keeps the tasks that it holds. With --replace-stalled, it is killed after 30 seconds, and
    replaced like one that has died, even if it is the only one.

    With --reload, the Python files beside the modules that the application has loaded are watched. When one changes,
    the processes stop as on SIGTERM and start anew. Code that cannot be imported is tried again, at once after the next
    change.

    Exit status: 0 once it is stopped; 2 for bad usage; 3 if it cannot start, for example because the schema does not
    match the models.
    """
    logs = _Logging(log_level, log_format, verbose)
    with _ending_on_sigterm():
        # reports problems once, not once per process
        served = {handler.spec for target in targets for handler in _worker(target, queues)._served}
        if absent := [name for name in queues or () if not any(name in called(spec) for spec in served)]:
            raise refusal(f"no worker has handlers for {', '.join(absent)}")
        if logs.set_up() and log_format is not None:
            complain("--log-format has no effect: the application configures logging itself")
        number = processes * len(targets)
        if health is not None and health.port + number - 1 > LARGEST_PORT:
            raise refusal(f"--health: there are fewer than {number} ports from {health.port} upwards")
        start = partial(_process, targets, queues, logs=logs, health=health, version=app_version)
        has_changed = CodeChanges() if reload else None
        status = supervise(
            start, number, ProcessLimits(max_tasks, max_memory), has_changed, replaces_stalled=replace_stalled
        )
    raise typer.Exit(status)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """End this process with status 0 on SIGTERM, until the supervisor handles it: importing a worker can take a long
    time."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class CodeChanges:
    """Tells whether Python files have changed, beside the modules that are loaded from outside of the installation."""

    def __init__(self) -> None:
        installed = {sys.prefix, sys.base_prefix, sys.exec_prefix}
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        directories = {Path(file).resolve().parent for file in files if file}
        self._directories = sorted(
            each for each in directories if not any(each.is_relative_to(prefix) for prefix in installed)
        )
        self._seen = self._times()
        self._next = 0.0

    def __call__(self) -> bool:
        """Return whether files have been changed, added or removed since the last call; looks once a second."""
        if time.monotonic() < self._next:
            return False
        before, self._seen, self._next = self._seen, self._times(), time.monotonic() + 1
        return self._seen != before

    def _times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for directory in self._directories:
            with suppress(OSError), os.scandir(directory) as entries:  # e.g. removed in the meantime
                found |= {each.path: each.stat().st_mtime_ns for each in entries if each.name.endswith(".py")}
        return found


def _worker(target: str, queues: Sequence[str] | None) -> Worker:
    """Return the worker of ``target``, which is to serve only ``queues`` if there are any."""
    worker = load(target)
    if not isinstance(worker, Worker):
        raise refusal(f"{target} is {type(worker).__name__}, not a sqlqueue.Worker")
    if not worker.handlers:
        raise refusal(f"{target} has no handlers: register one with @worker.handler(Task)")
    worker.origin = target
    if queues:
        specs = dict.fromkeys(handler.spec for handler in worker.handlers)
        worker._only = {spec.name for spec in specs if any(name in called(spec) for name in queues)}
        if not worker._only:
            raise refusal(f"{target} has no handlers for {', '.join(queues)}; its queues are {names_of(specs)}")
    return worker


def _process(
    targets: Sequence[str],
    queues: Sequence[str] | None,
    number: int,
    *,
    logs: _Logging,
    health: Address | None,
    version: str | None,
) -> Worker:
    """Return the worker of process ``number``, with logging and health checks set up."""
    worker = _worker(targets[number % len(targets)], queues)
    logs.set_up()
    worker.version = version or worker.version
    if health is not None:
        serve_health(health._replace(port=health.port + number), worker.health, worker.metrics)
    return worker


# -- the command `sqlqueue dashboard` ---------------------------------------------------------------------------------

Host = Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")]
Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port to listen on.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ACTION",
        help="Allow an action: retry, rerun, run-now, set-priority, set-time, cancel, discard, pause, resume,"
        " set-limit, set-rate, reschedule, unschedule, drain-workers, stop-workers, set-concurrency, release-workers,"
        " or all. May be repeated. By default, nothing can be changed.",
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
    if not is_async:
        return sessionmaker(prepared(create_engine(where)))
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: PLC0415

    engine = create_async_engine(where)
    prepared(engine.sync_engine)
    return async_sessionmaker(engine)


# -- the command `sqlqueue sql-tasks` ---------------------------------------------------------------------------------

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.toml", exists=True, dir_okay=False, help="The file that describes the databases, see above."
    ),
]


def sql_tasks(config: Config, verbose: Verbose = False, *, log_level: Level = None, log_format: Format = None) -> None:
    """Execute the SQL statements stored in rows of sql_task, in the databases of a configuration file.

    Anyone who may insert into the table sql_task can then run SQL in that database, as the user of execute_url or one
    of users. Grant that privilege, and choose those users, accordingly.

        [[database]]
        url = "postgresql+psycopg://scheduler@db/app"

        # the rest is optional: schemas with tasks, and users that run them
        schemas = ["app", "audit"]
        execute_url = "postgresql+psycopg://reporter@db/app"
        users = { owner = "postgresql+psycopg://owner@db/app" }

        create = true          # create missing tables
        queues = { mail = 3 }  # running requests per queue; otherwise 1
        concurrency = 10       # running requests per schema
        poll = 3               # maximum seconds between queries for work
        timeout = 3600         # maximum seconds of a request

    Then, in any program:

        INSERT INTO sql_task (request) VALUES ('SELECT 1')

    SIGTERM or Ctrl-C: starts nothing more and waits for running requests. A second one does not wait. While a database
    cannot be reached, the command keeps trying.
    """
    _Logging(log_level, log_format, verbose).set_up()
    with refusals("sql-tasks"):
        scheduler = SQLTaskScheduler(read_config(config))
    scheduler.run()
