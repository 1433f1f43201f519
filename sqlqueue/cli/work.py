"""The command ``sqlqueue work``."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated

import typer

from ..exc import SQLQueueError
from ..worker import Worker
from ..worker.supervisor import supervise
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


def work(target: Target, processes: Processes = 1, verbose: Verbose = False) -> None:
    """Run a worker: claim tasks and call their handlers, until it is told to stop.

        sqlqueue work myapp.jobs:worker --processes 4

    SIGTERM or Ctrl-C: nothing more is claimed, running handlers are given the worker's grace period, the rest is
    released and picked up by others at once. A second one does not wait. A database that is away is waited for.

    With more than one process, one that dies is replaced, after a pause that grows from one time to the next.

    Exit status: 0 once it was stopped; 2 for bad usage; 3 if it cannot start, such as for a schema that does not fit.
    """
    _log(verbose)
    worker = _worker(target)
    if processes > 1:
        raise typer.Exit(supervise(partial(_process, target, verbose), processes))
    try:
        worker.run()
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


def _process(target: str, verbose: bool) -> Worker:
    _log(verbose)
    return _worker(target)


def _log(verbose: bool) -> None:
    """Show the library's own messages, unless the application has set up logging itself."""
    if not logging.getLogger().handlers and not logging.getLogger("sqlqueue").handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
        logging.getLogger("sqlqueue").addHandler(handler)
        logging.getLogger("sqlqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
