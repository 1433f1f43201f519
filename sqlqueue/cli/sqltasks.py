"""The command ``sqlqueue sql-tasks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..sqltasks import SQLTaskScheduler, read_config
from ._database import refusals
from .work import Verbose, log

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.toml", exists=True, dir_okay=False, help="The file that describes the databases, see above."
    ),
]


def sql_tasks(config: Config, verbose: Verbose = False) -> None:
    """Execute the SQL statements stored in rows of sql_task, in the databases of a configuration file.

    Anyone who may insert into the table sql_task can then run SQL in that database, as the user of execute_url or one
    of users. Grant that privilege, and choose those users, accordingly.

        [[database]]
        url = "postgresql+psycopg://scheduler@db/app"

        # the rest is optional: schemas with tasks, and users that run them
        schemas = ["app", "audit"]
        execute_url = "postgresql+psycopg://reporter@db/app"
        users = { owner = "postgresql+psycopg://owner@db/app" }

        create = true          # create missing tables
        queues = { mail = 3 }  # running requests per queue; otherwise 1
        concurrency = 10       # running requests per schema
        poll = 3               # maximum seconds between queries for work
        timeout = 3600         # maximum seconds of a request

    Then, in any program:

        INSERT INTO sql_task (request) VALUES ('SELECT 1')

    SIGTERM or Ctrl-C: starts nothing more and waits for running requests. A second one does not wait. While a database
    cannot be reached, the command keeps trying.
    """
    log(verbose)
    with refusals("sql-tasks"):
        scheduler = SQLTaskScheduler(read_config(config))
    scheduler.run()
