"""Arguments of all commands: a ``module:attribute`` of the application and the URL of its database."""

from __future__ import annotations

import sys
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ._output import refusal

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE",
        help="The declarative base, MetaData or model of the queues, such as myapp.models:Base. The current directory"
        " is on the import path. The module must import all models.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help=(
            "The database as an SQLAlchemy URL: postgresql+psycopg://user@host/name. Prefer the environment variable if"
            " it contains a password: other users can see command lines."
        ),
    ),
]


def load(target: str) -> Any:
    """Import and return the object at ``module:attribute``; it is a usage error if there is none."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise refusal(f"{target!r} is not of the form module:attribute, as in myapp.models:Base")
    module = _import(module_name)
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise refusal(f"the module {module_name} has no {path}") from error


def _import(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise refusal(f"there is no module {error.name}, neither in the current directory nor installed") from error
        raise refusal(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise refusal(f"{name} cannot be imported: it raises {reason}") from error
