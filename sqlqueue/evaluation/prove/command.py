"""The command ``sqlqueue prove``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..command import Url, exit_codes, output, progress
from .database import tables
from .report import Proof
from .run import proven

Minutes = Annotated[float, typer.Option("--minutes", min=0, help="How long faults are injected.")]
Workers = Annotated[int, typer.Option("--workers", "-w", min=3, max=32, help="Number of worker processes.")]
Drop = Annotated[bool, typer.Option("--drop", help="Replace the tables that an interrupted run left behind.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
_WIDE = 120
"""Width in characters if the output is not a terminal."""


def prove(*, url: Url, minutes: Minutes = 1, workers: Workers = 3, drop: Drop = False, as_json: AsJson = False) -> None:
    """Prove on your server that a queue keeps its promises when workers and connections fail.

        sqlqueue prove --url postgresql+psycopg://me@host/test

    Worker processes handle tasks, and meanwhile some are killed (SIGKILL), frozen for longer than their leases
    (SIGSTOP), or lose all of their connections. Their handlers deadlock, or time out waiting for locks. Other sessions
    attempt what must fail: to complete a task that another claim holds, to claim a task under a lease, to exceed a
    limit. Then everything is counted.

    The result is a verdict, and for each promise how often it was put to the test and how often it was broken.

    Tables named sqlqueue_prove_... are created and dropped, even after Ctrl-C; the command refuses to start if they
    exist, and touches no others. It keeps the server busy: use one that nothing else depends on.

    Exit status: 0 if every promise was kept; 1 if one was broken or never put to the test; 2 if the proof cannot run;
    130 if it was stopped.
    """
    console = Console(stderr=True, highlight=False)
    with exit_codes(console, "sqlqueue prove"), progress(console) as say, tables(url, drop=drop) as engine:
        report = proven(engine, timedelta(minutes=minutes), workers, say)
    if as_json:
        typer.echo(json.dumps(report.plain(), indent=2))
    else:
        show(output(_WIDE), report)
    raise typer.Exit(0 if report.is_ok else 1)


def show(console: Console, report: Proof) -> None:
    """Print the promises with their observations, the faults and the verdict."""
    table = Table("Promise", "", "Observed", "Broken", "What was observed")
    for index in (2, 3):
        table.columns[index].justify = "right"
    for each in report.promises:
        mark = "[green]kept[/]" if each.is_kept else "[bold red]BROKEN[/]" if each.broken else "[yellow]not seen[/]"
        table.add_row(each.promise, mark, f"{each.observed:,}", f"{each.broken:,}", each.observation)
    console.print(table)
    console.print(", ".join(f"{kind}: {number:,}" for kind, number in report.faults.items()))
    longest = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in report.recovery.items())
    console.print(f"The longest time until the tasks of a worker were taken over or done: {longest}.")
    verdict = "keeps its promises" if report.is_ok else "does NOT keep its promises"
    console.print(f"sqlqueue {verdict} on {report.engine} {report.version} ({report.seconds:.0f} s).")
