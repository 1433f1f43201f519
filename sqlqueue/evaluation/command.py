"""Arguments, output and errors of the command ``sqlqueue prove``, and of the bench."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from sqlqueue import SQLQueueError

from .._support.error_text import readable
from .errors import EvaluationError

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help=(
            "The database to use, with a sync driver: postgresql+psycopg://user@host/name. Prefer the environment"
            " variable if the URL contains a password: other users can see command lines."
        ),
    ),
]

SILENCE = 15.0
"""Seconds between two lines of progress if the output is not a terminal."""


@contextmanager
def exit_codes(console: Console, program: str) -> Iterator[None]:
    """End the command with a message and exit status 2 on errors, and 130 on Ctrl-C."""
    try:
        yield
    except (EvaluationError, SQLQueueError, DBAPIError, TimeoutError) as error:
        reason: Any = f"the database raised an error: {error.orig}" if isinstance(error, DBAPIError) else error
        console.print(Text(readable(f"{program}: {reason}", lines=True)), soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("Stopped. The tables are dropped.")
        raise typer.Exit(130) from None


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that tells what is being done: in the last line of a terminal, or otherwise in a line of its own
    if there has been none for :data:`SILENCE`."""
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    printed = time.monotonic()

    def say(text: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= SILENCE:
            printed = time.monotonic()
            console.print(text, soft_wrap=True)

    yield say


def output(width: int) -> Console:
    """Return the console to print the results on, ``width`` characters wide unless it is a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)
