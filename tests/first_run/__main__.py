"""Runs the experiments on a server, and prints what it shows and what that answers."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import URL, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from tests.first_run.experiments import EXPERIMENTS
from tests.first_run.lab import Lab
from tests.first_run.views import VIEWS, Views
from tests.support.engines import ENGINES, EngineCase
from tests.support.given import Refused, move_in, move_out

_ABOUT = """\
Settle, on a real SQL Server or Oracle server, what their documentation leaves open about locks and plans. The
experiments use the library's own statements in several sessions, and print what the server's own views show. They have
never run on a real server: if one fails, it may itself be wrong. The database, or on Oracle the schema, must be empty,
and is left empty."""


def main(arguments: Sequence[str] | None = None, views: Mapping[str, Views] = VIEWS) -> int:
    asked = _parser().parse_args(arguments)
    try:
        url = make_url(asked.url)
        case = _case(url, views)
        move_in(case, url)
    except (ArgumentError, NoSuchModuleError, ImportError, DBAPIError, Refused) as error:
        print(f"nothing was run: {_first_line(error)}", file=sys.stderr)
        return 2
    try:
        return _run(case, url, views[url.get_backend_name()], asked)
    finally:
        move_out(url)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<10} {experiment.__doc__}" for name, experiment in EXPERIMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.first_run",
        description=f"{_ABOUT}\n\nexperiments:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="the URL of an empty database, such as mssql+pyodbc://... or oracle+oracledb://...")
    parser.add_argument(
        "experiment", type=_known, nargs="*", default=[*EXPERIMENTS], help="the experiments to run; all by default"
    )
    parser.add_argument(
        "--ready",
        type=_positive,
        nargs="+",
        default=[100, 100_000],
        metavar="N",
        help="numbers of ready tasks to try (100 100000)",
    )
    parser.add_argument(
        "--sessions", type=_positive, default=100, metavar="N", help="sessions that claim at once (100)"
    )
    return parser


def _known(name: str) -> str:
    if name not in EXPERIMENTS:
        raise argparse.ArgumentTypeError(f"unknown experiment {name!r}: give {', '.join(EXPERIMENTS)}")
    return name


def _positive(number: str) -> int:
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f"give a positive number, not {number!r}")
    return int(number)


def _case(url: URL, views: Mapping[str, Views]) -> EngineCase:
    name = url.get_backend_name()
    if name not in views:
        raise Refused(f"there are no experiments for {name}: give the URL of SQL Server (mssql) or Oracle")
    return next(case for case in ENGINES if case.name == name)


def _run(case: EngineCase, url: URL, views: Views, asked: argparse.Namespace) -> int:
    engine = create_engine(url, poolclass=NullPool, isolation_level="READ COMMITTED")

    @event.listens_for(engine, "connect")
    def limit(connection: Any, _: object) -> None:
        """No statement waits forever: claims should not wait at all."""
        if hasattr(connection, "call_timeout"):
            connection.call_timeout = 60_000
        if case.impatient_sql:
            cursor = connection.cursor()
            cursor.execute(case.impatient_sql)
            cursor.close()

    lab = Lab(engine=engine, views=views, ready=sorted(asked.ready), sessions=asked.sessions)
    failed = False
    with engine.connect() as connection:
        lab.say(f"{engine.name} {engine.dialect.server_version_info}, {engine.dialect.driver}")
        try:
            views.check(connection)
        except DBAPIError as error:
            print(f"this account may not read the views: {views.grant} ({_first_line(error)})", file=sys.stderr)
            return 2
    lab.prepare()
    for number, name in enumerate(asked.experiment, 1):
        lab.say(f"\n[{number} of {len(asked.experiment)}] {name}: {EXPERIMENTS[name].__doc__}")
        try:
            EXPERIMENTS[name](lab)
        except Exception as error:  # the others are still worth running
            failed = True
            lab.answer(f"{name} FAILED: {type(error).__name__}: {_first_line(error)}")
            traceback.print_exc()
    lab.say("\nWhat was learned (please report it, with the output above):")
    for answer in lab.learned:
        lab.say(f"- {answer}")
    return int(failed)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
