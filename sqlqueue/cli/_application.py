"""The program ``sqlqueue`` as a typer application: all commands, in the order of ``--help``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib.metadata import version
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, get_type_hints

import typer
from typer.models import OptionInfo

from ..evaluation.demo.run import demo
from ..evaluation.prove.run import prove
from ._database import refusals
from ._help import Command, Group
from .batches import batch, batches, open_
from .changes import cancel, discard, prune, rerun, retry, run_now
from .check import check
from .control import keys, limits, pause, resume, set_limit, set_rate, workers
from .enqueue import enqueue
from .schedules import schedules
from .statistics import errors, stats
from .tasks import list_tasks, show, why
from .work import dashboard, sql_tasks, work

Function = Callable[..., None]

_GENERAL: Sequence[Function] = (demo, check, work, dashboard, prove, sql_tasks)
_ON_CALL: Sequence[Function] = (
    list_tasks,
    stats,
    errors,
    show,
    why,
    enqueue,
    retry,
    rerun,
    run_now,
    cancel,
    discard,
    prune,
    pause,
    resume,
    schedules,
    batches,
    batch,
    open_,
    keys,
    limits,
    set_limit,
    set_rate,
    workers,
)
_NAMES: dict[Function, str] = {list_tasks: "list", open_: "open"}
"""Names of commands that differ from their function's, in which hyphens replace underscores."""


def make_application() -> typer.Typer:
    """Return the application with all commands."""
    # without rich: it cuts long words, and draws boxes around messages that are to be copied
    made = typer.Typer(
        cls=Group,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,
    )
    made.callback()(_sqlqueue)
    for command in _GENERAL:
        _add(made, command, command)
    for command in _ON_CALL:
        _add(made, command, _flat(command), panel="Commands for on-call operators")
    return made


def _add(application: typer.Typer, command: Function, called: Function, panel: str | None = None) -> None:
    text = cleandoc(command.__doc__ or "")
    application.command(_NAMES.get(command), cls=Command, help=text, rich_help_panel=panel)(called)


def _flat(command: Function) -> Function:
    """Return ``command`` with the options of dataclasses, such as :class:`.Filters`, in place of these parameters.

    Errors of the library and of the database end it with a message.
    """
    own = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    shown: list[Parameter] = []
    for each in own:
        shown += _options(each.annotation) if each.name in groups else [each.replace(kind=Parameter.KEYWORD_ONLY)]
    shown.sort(key=_place)

    @wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{option.name: given.pop(option.name) for option in fields(kind)})
        with refusals(_NAMES.get(command) or command.__name__.replace("_", "-")):
            command(**given)

    vars(called).update(__signature__=Signature(shown), __annotations__={each.name: each.annotation for each in shown})
    return called


def _options(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(kind)
    ]


def _place(parameter: Parameter) -> tuple[bool, bool]:
    """Sort arguments before options, and options that are required before others."""
    (asked,) = parameter.annotation.__metadata__
    return isinstance(asked, OptionInfo), parameter.default is not Parameter.empty


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
