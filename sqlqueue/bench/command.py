"""The command ``sqlqueue bench``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from sqlqueue import SQLQueueError
from sqlqueue._support.error_text import readable

from ..demo.errors import DemoError
from .models import Key
from .plan import BenchError
from .run import SECTIONS, STANDARD, Wanted, measured
from .show import show

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help="The database to be measured, with a sync driver: postgresql+psycopg://user:password@host/name.",
    ),
]
Only = Annotated[
    str,
    typer.Option("--only", metavar="SECTIONS", help=f"What to measure: {', '.join(SECTIONS)}."),
]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="In enqueue and drain: how many; a fifth of them where each is committed.")
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Of enqueue, drain and growth: how many.")]
Processes = Annotated[
    str, typer.Option("--processes", metavar="1,2", help="In drain: how many processes work at a time.")
]
Threads = Annotated[
    int, typer.Option("--threads", min=1, help="In drain: those of a worker, and of what it is compared with.")
]
Batch = Annotated[int, typer.Option("--batch", min=2, help="In drain: how many jobs a loop claims at a time.")]
Payload = Annotated[
    int, typer.Option("--payload", min=0, metavar="BYTES", help="The length of the text that each job has.")
]
KeyOption = Annotated[Key, typer.Option("--key", help="The primary key of the jobs.")]
Tasks = Annotated[int, typer.Option("--tasks", min=20, help="In pickup: how many tasks are enqueued one by one.")]
Idle = Annotated[float, typer.Option("--idle", min=1, help="In pickup: the seconds for which an idle worker is seen.")]
Sizes = Annotated[
    str, typer.Option("--sizes", metavar="0,1000", help="In growth: how many finished tasks, and as many scheduled.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures for programs: one object of JSON.")]
_WIDE = 140
"""Characters, where no terminal says how many there is room for."""
_STANDARD = ",".join(STANDARD)


def bench(
    *,
    url: Url,
    only: Only = _STANDARD,
    jobs: Jobs = 10_000,
    rounds: Rounds = 3,
    processes: Processes = "1,2",
    threads: Threads = 10,
    batch: Batch = 100,
    payload: Payload = 100,
    key: KeyOption = Key.INT,
    tasks: Tasks = 300,
    idle: Idle = 20,
    sizes: Sizes = "0,200000,2000000",
    as_json: AsJson = False,
) -> None:
    """Measure what a queue costs on a database of yours, beside what it costs by hand.

        sqlqueue bench --url postgresql+psycopg://me@host/test

    enqueue: one by one, in bulk, by COPY. drain: loops that claim and complete, and workers whose
    handlers do nothing. Each is done in turns with the same work written by hand, in SQL for the driver alone and with
    SQLAlchemy's ORM. Told are the median of all rounds, the least and the most, and the ratio within a round.

    pickup: how soon a worker begins a task, how late it is for a moment, and what it sends while it is idle.

    growth: drains amid hundreds of thousands of other tasks. It takes long, and has to be asked for.

    Tables named sqlqueue_bench_... are made and dropped. Exit status: 0; 2 if it could not be measured.
    """
    console = Console(stderr=True, highlight=False)
    wanted = Wanted(
        sections=_sections(only),
        processes=_numbers("--processes", processes, least=1),
        jobs=jobs,
        rounds=rounds,
        threads=threads,
        batch=batch,
        payload=payload,
        key=key,
        tasks=tasks,
        idle=idle,
        sizes=_numbers("--sizes", sizes, least=0),
    )
    with _refusals(console), console.status("starting") as status:
        report = measured(url, wanted, say=status.update)
    if as_json:
        typer.echo(json.dumps(report.plain(), indent=2))
    else:
        output = Console(highlight=False)
        show(output if output.is_terminal else Console(highlight=False, width=_WIDE), report)


def _sections(only: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in only.split(","))
    if unknown := [name for name in names if name not in SECTIONS]:
        raise typer.BadParameter(f"--only names {unknown[0]!r}: one or more of {', '.join(SECTIONS)}, with commas")
    return names


def _numbers(option: str, given: str, *, least: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in given.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{option}={given}: give numbers with commas, as in 1,2") from error
    if min(numbers) < least or len(set(numbers)) < len(numbers):
        raise typer.BadParameter(f"{option}={given}: give different numbers, each at least {least}")
    return numbers


@contextmanager
def _refusals(console: Console) -> Iterator[None]:
    """What cannot be measured ends the command, in words and with the exit status 2."""
    try:
        yield
    except (BenchError, DemoError, SQLQueueError, DBAPIError) as error:
        reason: Any = f"the database refuses: {error.orig}" if isinstance(error, DBAPIError) else error
        console.print(Text(readable(f"sqlqueue bench: {reason}", lines=True)), soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("Stopped. The tables are gone.")
        raise typer.Exit(130) from None
