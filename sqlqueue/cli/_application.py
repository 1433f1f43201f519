"""The program ``sqlqueue`` as a typer application: all commands, in the order of ``--help``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from importlib.metadata import version
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, get_type_hints

import typer
from rich.markup import escape

from ..evaluation.demo.run import demo
from ..evaluation.prove.run import prove
from ._options import Filters
from .changes import cancel, discard, prune, rerun, retry
from .check import check
from .control import limits, pause, resume, set_limit, workers
from .statistics import errors, stats
from .tasks import list_tasks, show, why
from .work import dashboard, sql_tasks, work

Command = Callable[..., None]

_GENERAL: Sequence[Command] = (demo, check, work, dashboard, prove, sql_tasks)
_ON_CALL: Sequence[Command] = (
    list_tasks,
    stats,
    errors,
    show,
    why,
    retry,
    rerun,
    cancel,
    discard,
    prune,
    pause,
    resume,
    limits,
    set_limit,
    workers,
)
_NAMES: dict[Command, str] = {list_tasks: "list"}
"""Names of commands that differ from their function's, in which hyphens replace underscores."""


def make_application() -> typer.Typer:
    """Return the application with all commands."""
    made = typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_show_locals=False
    )
    made.callback()(_sqlqueue)
    for command in _GENERAL:
        _add(made, command)
    for command in _ON_CALL:
        _add(made, command, panel="Commands for on-call operators")
    return made


def _add(application: typer.Typer, command: Command, panel: str | None = None) -> None:
    text = escape(cleandoc(command.__doc__ or ""))  # brackets in docstrings are literal, not rich markup
    application.command(_NAMES.get(command), help=text, rich_help_panel=panel)(_with_filters(command))


def _with_filters(command: Command) -> Command:
    """Return ``command`` with the options of :class:`.Filters` in place of a parameter ``filters``."""
    own = signature(command, eval_str=True).parameters
    if "filters" not in own:
        return command
    hints = get_type_hints(Filters, include_extras=True)
    options = {
        each.name: Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(Filters)
    }
    shown: list[Parameter] = []
    for name, parameter in own.items():
        shown += options.values() if name == "filters" else [parameter]

    @wraps(command)
    def called(**given: Any) -> None:
        command(filters=Filters(**{name: given.pop(name) for name in options}), **given)

    vars(called).update(__signature__=Signature(shown), __annotations__={each.name: each.annotation for each in shown})
    return called


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sqlqueue {version('sqlalchemy-queue')} (SQLAlchemy {version('sqlalchemy')})")
        raise typer.Exit


_VERSION = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the versions.")


def _sqlqueue(version: bool = _VERSION) -> None:
    """Durable queues made of SQLAlchemy models, in the database that the application already has.

    Applications import the library; these commands are for operators and deployments. To try it out:

        sqlqueue demo .
    """
