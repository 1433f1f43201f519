"""The command ``sqlqueue sql-tasks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..sqltasks import SQLTaskScheduler, read_config
from ._database import refusals
from .work import Verbose, log

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", exists=True, dir_okay=False, help="The databases, as below.")
]


def sql_tasks(config: Config, verbose: Verbose = False) -> None:
    """Execute SQL that rows hold: an asynchronous scheduler for the databases of a configuration file.

    Whoever may insert into the table sql_task of such a database then runs SQL there, as the user of execute_url or as
    one of users. Give that right, and those users, accordingly.

        [[database]]
        url = "postgresql+psycopg://scheduler@db/app"

        # all else may be left out: where the tasks are, and as whom they run
        schemas = ["app", "audit"]
        execute_url = "postgresql+psycopg://reporter@db/app"
        users = { owner = "postgresql+psycopg://owner@db/app" }

        create = true          # the tables, where they are missing
        queues = { mail = 3 }  # so many of a queue at a time; 1 of others
        concurrency = 10       # so many of a schema at a time
        poll = 3               # seconds between two looks, at the most
        timeout = 3600         # seconds for a request, at the most

    Then, in any program:

        INSERT INTO sql_task (request) VALUES ('SELECT 1')

    SIGTERM or Ctrl-C: nothing more is begun, what runs is waited for. A second one does not wait. A database that is
    away is waited for.
    """
    log(verbose)
    with refusals("sql-tasks"):
        scheduler = SQLTaskScheduler(read_config(config))
    scheduler.run()
