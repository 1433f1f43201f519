"""What the commands are given: a `module:attribute` of the application, and the URL of its database."""

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
        help="Where the queues are: a declarative base, a MetaData or a model, such as myapp.models:Base. The module"
        " is looked for in the current directory, too, and is to import all models that count.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help="The database, as SQLAlchemy writes it: postgresql+psycopg://user:password@host/name.",
    ),
]


def load(target: str) -> Any:
    """The object that ``module:attribute`` names; bad usage if there is none."""
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
            raise refusal(f"there is no module {error.name}, here or installed") from error
        raise refusal(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise refusal(f"{name} cannot be imported, it raises {reason}") from error
