"""The command line ``sqlqueue``, which needs the extra ``cli``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the program ``sqlqueue``.  Exits with a message if the extra ``cli`` is not installed."""
    if any(find_spec(name) is None for name in ("rich", "typer")):
        extra = "pip install 'sqlalchemy-queue[cli]', the distribution of sqlqueue"
        sys.exit(f"The sqlqueue command line needs an extra: {extra}")
    application()()


def application() -> typer.Typer:
    """Return the typer application with all commands.  Their dependencies are imported here, not with this module."""
    import typer  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    from ..bench.command import bench  # noqa: PLC0415
    from ..demo.command import demo  # noqa: PLC0415
    from ..prove.command import prove  # noqa: PLC0415
    from .changes import cancel, discard, retry  # noqa: PLC0415
    from .check import check  # noqa: PLC0415
    from .dashboard import dashboard  # noqa: PLC0415
    from .limits import limits, set_limit  # noqa: PLC0415
    from .pausing import pause, resume  # noqa: PLC0415
    from .pruning import prune  # noqa: PLC0415
    from .sqltasks import sql_tasks  # noqa: PLC0415
    from .stats import errors, stats  # noqa: PLC0415
    from .tasks import list_tasks, show, why  # noqa: PLC0415
    from .work import work  # noqa: PLC0415
    from .workers import workers  # noqa: PLC0415

    commands = typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_show_locals=False
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"sqlqueue {version('sqlalchemy-queue')} (SQLAlchemy {version('sqlalchemy')})")
            raise typer.Exit

    option = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show the versions.")

    @commands.callback()
    def sqlqueue(version: bool = option) -> None:
        """Durable queues made of SQLAlchemy models, in the database that the application already has.

        Applications import the library; these commands are for operators and deployments. To try it out:

            sqlqueue demo .
        """

    def add(command: Callable[..., None], name: str | None = None, panel: str | None = None) -> None:
        # brackets in docstrings are literal, not rich markup
        commands.command(name, help=escape(cleandoc(command.__doc__ or "")), rich_help_panel=panel)(command)

    others: Sequence[Callable[..., None]] = (demo, check, work, dashboard, bench, prove)
    for command in others:
        add(command)
    add(sql_tasks, "sql-tasks")
    panel = "Commands for on-call operators"
    add(list_tasks, "list", panel)
    on_call: Sequence[Callable[..., None]] = (
        stats,
        errors,
        show,
        why,
        retry,
        cancel,
        discard,
        prune,
        pause,
        resume,
        limits,
        workers,
    )
    for command in on_call:
        add(command, panel=panel)
    add(set_limit, "set-limit", panel)
    return commands
