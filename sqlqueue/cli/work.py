"""The command ``sqlqueue work``."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated

import typer

from .._support.exc import ArgumentError, SQLQueueError
from ..worker import Worker
from ..worker.process.supervisor import CANNOT_START, run_to_end, supervise
from ..worker.reporting.health import LARGEST_PORT, Address, address_of, serve_health
from ._database import refusals
from ._output import refusal
from ._target import load


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except ArgumentError as error:
        raise refusal(str(error)) from error


Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:WORKER",
        help="The application's sqlqueue.Worker, such as myapp.jobs:worker. The current directory is on the import"
        " path. The module must import all handlers.",
    ),
]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, max=256, help="Number of worker processes.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log each task, not only problems.")]
Health = Annotated[
    Address | None,
    typer.Option(
        "--health",
        metavar="ADDRESS",
        parser=_address,
        help="Serve /health and /ready over HTTP on this port; further processes use the following ports. Binds to the"
        " loopback address unless a host is given: 0.0.0.0:8080 in a container, [::1]:8080.",
    ),
]


def work(target: Target, processes: Processes = 1, verbose: Verbose = False, health: Health = None) -> None:
    """Run a worker: claim tasks and call their handlers, until stopped.

        sqlqueue work myapp.jobs:worker --processes 4

    SIGTERM or Ctrl-C: claims nothing more and gives running handlers the worker's grace period; the remaining tasks are
    released, and other workers may claim them at once. A second one does not wait. While the database cannot be
    reached, the worker keeps trying.

    With --health 8080, http://127.0.0.1:8080/health answers 200 while the worker's event loop runs, and 503 when only a
    new process would help; /ready answers 200 while the worker also reaches its database. Both report the worker's
    activity as JSON, without authentication. In a container, where probes come from outside, use --health 0.0.0.0:8080.

    With several processes, one that dies is replaced, after a pause that grows each time.

    Exit status: 0 once it is stopped; 2 for bad usage; 3 if it cannot start, for example because the schema does not
    match the models.
    """
    log(verbose)
    _worker(target)  # reports its problems once, not once per process
    if health is not None and health.port + processes - 1 > LARGEST_PORT:
        raise refusal(f"--health: there are not {processes} ports from {health.port} on")
    start = partial(_process, target, verbose, health)
    if processes > 1:
        raise typer.Exit(supervise(start, processes))
    with refusals("work"):
        worker = start(0)
    try:
        run_to_end(worker)
    except SQLQueueError as error:  # already logged by the worker
        raise typer.Exit(CANNOT_START) from error


def _worker(target: str) -> Worker:
    worker = load(target)
    if not isinstance(worker, Worker):
        raise refusal(f"{target} is {type(worker).__name__}, not a sqlqueue.Worker")
    if not worker.handlers:
        raise refusal(f"{target} has no handlers: register one with @worker.handler(Task)")
    return worker


def _process(target: str, verbose: bool, health: Address | None, number: int) -> Worker:
    """Return the worker of process ``number``, with logging and health checks set up."""
    log(verbose)
    worker = _worker(target)
    if health is not None:
        serve_health(health._replace(port=health.port + number), worker.health)
    return worker


def log(verbose: bool) -> None:
    """Log the library's messages to standard error, unless the application has configured logging."""
    if not logging.getLogger().handlers and not logging.getLogger("sqlqueue").handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
        logging.getLogger("sqlqueue").addHandler(handler)
        logging.getLogger("sqlqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
