"""The command line of ``python -m bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sqlqueue.evaluation.support import Url, exit_codes, output, progress

from .models import KeyKind
from .run import PEERS, SECTIONS, STANDARD, BenchOptions, measured
from .show import show

Only = Annotated[
    str,
    typer.Option("--only", metavar="SECTIONS", help=f"Sections to measure: {', '.join(SECTIONS)}."),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", min=1, help="enqueue, drain: number of jobs; a fifth as many where each job is committed separately."
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="enqueue, drain, growth, keyed: number of rounds.")]
Processes = Annotated[
    str, typer.Option("--processes", metavar="1,2", help="drain: numbers of concurrent processes, separated by commas.")
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", min=1, help="drain: number of threads in a worker and in the code that it is compared with."
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=2, help="drain: number of jobs that a loop claims at once.")]
Work = Annotated[
    str,
    typer.Option(
        "--work", metavar="TEXT", help="drain: measure only kinds of work whose names contain this text; empty for all."
    ),
]
Payload = Annotated[int, typer.Option("--payload", min=0, metavar="BYTES", help="Length of each job's text.")]
KeyOption = Annotated[KeyKind, typer.Option("--key", help="Primary key of the jobs.")]
Tasks = Annotated[int, typer.Option("--tasks", min=20, help="pickup: number of tasks enqueued one by one.")]
Idle = Annotated[float, typer.Option("--idle", min=1, help="pickup: seconds for which an idle worker is observed.")]
Sizes = Annotated[
    str,
    typer.Option(
        "--sizes",
        metavar="0,1000",
        help="growth: numbers of finished tasks (and of scheduled tasks), separated by commas. keyed: the largest"
        " one is the number of tasks of one key.",
    ),
]
Delay = Annotated[
    float,
    typer.Option(
        "--delay",
        min=0,
        metavar="MS",
        help="Milliseconds of latency that a proxy adds in each direction; 0 for no proxy. roundtrips: at least 1.",
    ),
]
Peers = Annotated[bool, typer.Option("--peers", help="Compare sqlqueue with other libraries instead; PostgreSQL only.")]
Environments = Annotated[
    Path | None,
    typer.Option(
        "--environments",
        metavar="DIRECTORY",
        help="--peers: the directory in which virtual environments are kept; by default a temporary one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]
_WIDE = 140
"""Width in characters if the output is not a terminal."""
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
    work: Work = "",
    payload: Payload = 100,
    key: KeyOption = KeyKind.INT,
    tasks: Tasks = 300,
    idle: Idle = 20,
    sizes: Sizes = "0,200000,2000000",
    delay: Delay = 0,
    peers: Peers = False,
    environments: Environments = None,
    as_json: AsJson = False,
) -> None:
    """Measure the costs of a queue on your database, compared with the same work written by hand.

        python -m bench --url postgresql+psycopg://me@host/test

    enqueue: one by one, in bulk, by COPY. drain: loops that claim and complete, and workers whose handlers do nothing.
    Each alternates with the same work written by hand, in SQL for the driver and with SQLAlchemy's ORM. The output
    shows the median of all rounds, the minimum and maximum, and the ratio within a round.

    pickup: how soon a worker starts enqueued and scheduled tasks, and how many statements an idle worker sends.

    roundtrips: how often each operation waits for the server, counted by a proxy, and how long it takes if each round
    trip takes 2 ms longer; not on SQLite.

    growth: drains among hundreds of thousands of other tasks. Slow, and only with --only growth.

    keyed: drains of queues whose keys share them, have limits or keep their order, compared with a plain queue, and
    beside a large backlog of one key, compared with a small one. Only with --only keyed.

    --peers: procrastinate, chancy, pgqueuer, oban and, with Node.js, graphile-worker, in their latest releases,
    compared with sqlqueue and with hand-written code. A library that cannot be installed or that fails is listed with
    the reason.

    Tables and schemas named sqlqueue_bench_... are created and dropped. Exit status: 0; 2 if it cannot measure; 130 if
    it was stopped.
    """
    console = Console(stderr=True, highlight=False)
    wanted = BenchOptions(
        sections=(PEERS,) if peers else _sections(only),
        processes=_numbers("--processes", processes, least=1),
        jobs=jobs,
        rounds=rounds,
        threads=threads,
        batch=batch,
        work=work,
        payload=payload,
        key=key,
        tasks=tasks,
        idle=idle,
        sizes=_numbers("--sizes", sizes, least=0),
        delay=delay,
        environments=environments,
    )
    with exit_codes(console, "python -m bench"), progress(console) as say:
        report = measured(url, wanted, say=say)
    if as_json:
        typer.echo(json.dumps(report.plain(), indent=2, default=str))
    else:
        show(output(_WIDE), report)


def _sections(only: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in only.split(","))
    if unknown := [name for name in names if name not in SECTIONS]:
        raise typer.BadParameter(f"--only names {unknown[0]!r}: choose from {', '.join(SECTIONS)}, separated by commas")
    return names


def _numbers(option: str, given: str, *, least: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in given.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{option}={given}: give numbers separated by commas, as in 1,2") from error
    if min(numbers) < least or len(set(numbers)) < len(numbers):
        raise typer.BadParameter(f"{option}={given}: give distinct numbers, each at least {least}")
    return numbers
