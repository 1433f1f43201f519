"""The command ``sqlqueue bench``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from ..demo.database import connect, sessions
from ..dialects import adapter_for
from .models import Base, Probe
from .pickup import Delays, Pickup, measure_pickup

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help="The database to be measured, with a sync driver: postgresql+psycopg://user:password@host/name.",
    ),
]
Tasks = Annotated[int, typer.Option("--tasks", min=20, help="How many tasks are enqueued one by one.")]
Idle = Annotated[float, typer.Option("--idle", min=1, help="For how many seconds an idle worker is watched.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures for programs: one object of JSON.")]


def bench(url: Url, tasks: Tasks = 300, idle: Idle = 20, as_json: AsJson = False) -> None:
    """Measure how soon a worker begins a task, and what it costs while there is none.

        sqlqueue bench --url postgresql+psycopg://me@host/test

    A worker runs in a process of its own. Tasks are enqueued one by one, some milliseconds apart, and the time from
    the commit to the call of the handler is measured; then tasks that are scheduled for a moment, and by how much they
    are late; then the statements that the worker sends while there is nothing to do. Where the engine has
    notifications, once with them and once without.

    The table sqlqueue_bench_probe is made and dropped. Exit status: 0; 2 if it could not be measured.
    """
    console = Console(stderr=True, highlight=False)
    engine = connect(url)
    try:
        with ExitStack() as stack:
            stack.callback(engine.dispose)
            if inspect(engine).has_table(Probe.__tablename__):
                raise typer.BadParameter(f"there is a table {Probe.__tablename__} already: drop it, if it is a bench's")
            stack.callback(Base.metadata.drop_all, engine)
            Base.metadata.create_all(engine)
            listens = adapter_for(engine.dialect).can_listen(engine.dialect.driver)
            with console.status("starting") as status:
                figures = [
                    measure_pickup(engine, sessions(engine), tasks=tasks, idle=idle, notify=notify, say=status.update)
                    for notify in ((True, False) if listens else (False,))
                ]
    except DBAPIError as error:
        console.print(f"sqlqueue bench: the database refuses: {error.orig}", markup=False)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures], indent=2))
    else:
        _show(figures)


def _show(figures: list[Pickup]) -> None:
    table = Table("milliseconds", "tasks", "p50", "p95", "p99", "most")
    for figure in figures:
        how = "notified" if figure.notified else "by looking"
        table.add_row(f"from the commit to the handler, {how}", *_cells(figure.enqueued))
        table.add_row(f"late for its moment, {how}", *_cells(figure.scheduled))
    console = Console(highlight=False)
    console.print(table)
    for figure in figures:
        how = "that listens" if figure.notified else "that looks"
        console.print(f"An idle worker {how} sends {figure.idle_statements:.2f} statements a second.")


def _cells(delays: Delays) -> list[str]:
    return [str(delays.count), *(f"{value:.1f}" for value in (delays.p50, delays.p95, delays.p99, delays.most))]
