"""The command ``sqlqueue work``."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from .._support.exc import ArgumentError
from ..worker import Worker
from ..worker.process.recycling import ProcessLimits
from ..worker.process.supervisor import supervise
from ..worker.reporting.health import LARGEST_PORT, Address, address_of, serve_health
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

AppVersion = Annotated[
    str | None,
    typer.Option("--app-version", metavar="TEXT", help="The application's version, shown by sqlqueue workers."),
]


def work(
    target: Target,
    processes: Processes = 1,
    verbose: Verbose = False,
    health: Health = None,
    *,
    max_tasks: MaxTasks = None,
    max_memory: MaxMemory = None,
    app_version: AppVersion = None,
) -> None:
    """Run a worker: claim tasks and call their handlers, until stopped.

        sqlqueue work myapp.jobs:worker --processes 4

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

    Exit status: 0 once it is stopped; 2 for bad usage; 3 if it cannot start, for example because the schema does not
    match the models.
    """
    with _ending_on_sigterm():
        _worker(target)  # reports its problems once, not once per process
        log(verbose)
        if health is not None and health.port + processes - 1 > LARGEST_PORT:
            raise refusal(f"--health: there are fewer than {processes} ports from {health.port} upwards")
        start = partial(_process, target, verbose, health, app_version)
        status = supervise(start, processes, ProcessLimits(max_tasks, max_memory))
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


def _worker(target: str) -> Worker:
    worker = load(target)
    if not isinstance(worker, Worker):
        raise refusal(f"{target} is {type(worker).__name__}, not a sqlqueue.Worker")
    if not worker.handlers:
        raise refusal(f"{target} has no handlers: register one with @worker.handler(Task)")
    worker.origin = target
    return worker


def _process(target: str, verbose: bool, health: Address | None, version: str | None, number: int) -> Worker:
    """Return the worker of process ``number``, with logging and health checks set up."""
    worker = _worker(target)
    log(verbose)
    worker.version = version or worker.version
    if health is not None:
        serve_health(health._replace(port=health.port + number), worker.health, worker.metrics)
    return worker


def log(verbose: bool) -> None:
    """Log the library's messages to standard error, unless the application has configured logging.

    Applications do so in the module of their worker, which therefore has to be imported before.
    """
    if not logging.getLogger().handlers and not logging.getLogger("sqlqueue").handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
        logging.getLogger("sqlqueue").addHandler(handler)
        logging.getLogger("sqlqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
