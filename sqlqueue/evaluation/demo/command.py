"""The command ``sqlqueue demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from sqlqueue import SQLQueueError

from ..errors import EvaluationError
from .database import tables
from .display import Display
from .folder import scan
from .run import run

Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Index the files below this folder.")]
Workers = Annotated[int, typer.Option("--workers", "-w", min=1, max=64, help="Number of worker processes.")]
URL = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DEMO_URL",
        help=(
            "Use this database instead of a SQLite file: postgresql+psycopg://user@host/name. Prefer the environment"
            " variable if the URL contains a password: other users can see command lines."
        ),
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the tables for inspection.")]
Drop = Annotated[bool, typer.Option("--drop", help="Replace the tables that an earlier demo left behind.")]


def demo(
    folder: Folder = Path(), workers: Workers = 4, url: URL = None, keep: Keep = False, drop: Drop = False
) -> None:
    """Index a folder's files with several processes, kill one of them, and count the results.

    Every file below FOLDER becomes a row of an ordinary model, which is also the queue. Worker processes claim rows,
    read the files, and commit the results together with the completion. One worker is killed (SIGKILL) while it holds
    files: their leases expire after two seconds, and the other workers take over.

    At the end the rows are counted: none may be lost, and none done twice. The exit status is 1 if any was.

    The tables, sqlqueue_demo_file and sqlqueue_demo_receipt, are created in a temporary SQLite file or in the database
    of --url, and are dropped afterwards.
    """
    display = Display(Console(highlight=False), Console(stderr=True, highlight=False))
    try:
        found = list(scan(folder))
        if not found:
            raise EvaluationError(f"there are no files below {folder}")
        with tables(url, keep=keep, drop=drop) as engine:
            tally = run(engine, folder.resolve(), found, workers, display)
            if keep:
                display.say(f"Kept: {engine.url}")
    except (EvaluationError, SQLQueueError) as error:
        display.complain(f"sqlqueue demo: {error}")
        raise typer.Exit(2) from error
    except DBAPIError as error:
        display.complain(f"sqlqueue demo: the database raised an error: {error.orig}")
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        display.complain("Stopped. The workers have ended" + ("." if keep else ", and the tables were dropped."))
        raise typer.Exit(130) from None
    raise typer.Exit(0 if tally.is_clean else 1)
