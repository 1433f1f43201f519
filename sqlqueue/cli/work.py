"""The command ``sqlqueue work``."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated

import typer

from ..exc import SQLQueueError
from ..worker import Worker
from ..worker.health import serve_health
from ..worker.supervisor import run_to_end, supervise
from ._target import load

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:WORKER",
        help="The application's sqlqueue.Worker, such as myapp.jobs:worker. The module is looked for in the current"
        " directory, too, and is to import all handlers.",
    ),
]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, max=256, help="How many processes work.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log each task, and not only what goes wrong.")]
Health = Annotated[
    int | None,
    typer.Option(
        "--health",
        metavar="PORT",
        min=1,
        max=65_535,
        help="Answer /health and /ready over HTTP on this port; with several processes each on the next one.",
    ),
]
HealthHost = Annotated[str, typer.Option("--health-host", metavar="ADDRESS", help="The address to answer on.")]


def work(
    target: Target,
    processes: Processes = 1,
    verbose: Verbose = False,
    health: Health = None,
    health_host: HealthHost = "0.0.0.0",
) -> None:
    """Run a worker: claim tasks and call their handlers, until it is told to stop.

        sqlqueue work myapp.jobs:worker --processes 4

    SIGTERM or Ctrl-C: nothing more is claimed, running handlers are given the worker's grace period, the rest is
    released and picked up by others at once. A second one does not wait. A database that is away is waited for.

    With --health 8080, http://host:8080/health answers 200 while the worker's event loop turns, and 503 when only a new
    process would help; /ready answers 200 while it reaches its database, too. Both tell in JSON what it is at.

    With more than one process, one that dies is replaced, after a pause that grows from one time to the next.

    Exit status: 0 once it was stopped; 2 for bad usage; 3 if it cannot start, such as for a schema that does not fit.
    """
    log(verbose)
    _worker(target)  # what is wrong with it is said once
    start = partial(_process, target, verbose, health, health_host)
    if processes > 1:
        raise typer.Exit(supervise(start, processes))
    try:
        run_to_end(start(0))
    except SQLQueueError as error:
        typer.echo(f"sqlqueue work: {error}", err=True)
        raise typer.Exit(3) from error


def _worker(target: str) -> Worker:
    worker = load(target)
    if not isinstance(worker, Worker):
        raise typer.BadParameter(f"{target} is {type(worker).__name__}, and no sqlqueue.Worker")
    if not worker.handlers:
        raise typer.BadParameter(f"{target} has no handlers: register one with @worker.handler(Task)")
    return worker


def _process(target: str, verbose: bool, port: int | None, host: str, number: int) -> Worker:
    """The worker of one process, with what is set up around it."""
    log(verbose)
    worker = _worker(target)
    if port is not None:
        serve_health(port + number, host, worker.health)
    return worker


def log(verbose: bool) -> None:
    """Show the library's own messages, unless the application has set up logging itself."""
    if not logging.getLogger().handlers and not logging.getLogger("sqlqueue").handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
        logging.getLogger("sqlqueue").addHandler(handler)
        logging.getLogger("sqlqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
