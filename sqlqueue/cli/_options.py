"""Arguments and options that several commands share: the application, its queues, the tasks, output as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from .. import operations
from .._support.errors import ArgumentError
from .._support.texts import error_text
from ..model.declaration import specs_of
from ..operations import filtering
from ..operations.filtering import column
from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec
from ._database import R, transact
from ._output import refusal

E = TypeVar("E", bound=str)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: stable keys, times in ISO 8601.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


# -- arguments of all commands: a `module:attribute` of the application and the URL of its database -------------------

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
        help="The database as an SQLAlchemy URL: postgresql+psycopg://user@host/name. Prefer the environment variable"
        " if it contains a password: other users can see command lines.",
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
        raise refusal(f"{name} cannot be imported: it raises {error_text(error)}") from error


# -- the option `--queue`: the queues that a command applies to -------------------------------------------------------

Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="The name of the queue, which is its table's, or of its model; required if there are several.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The options that select queues and their database: commands with a parameter of this type have them all."""

    target: Target
    url: Url
    queue: Queue = None

    @property
    def chosen(self) -> list[QueueSpec]:
        """The queues of the target that hold tasks, or the one that ``--queue`` names; it is a usage error if there is
        none."""
        every = specs_of(load(self.target))
        found = [spec for spec in every if spec.holds_tasks]
        if not found:
            raise refusal(f"{names_of(every)} holds the slots of limits, not tasks: name the model with the limits")
        name = self.queue
        chosen = [spec for spec in found if name is None or name in called(spec)]
        if not chosen:
            raise refusal(f"there is no queue {name} in {self.target}; its queues are {names_of(found)}")
        return chosen

    def which(self, are: Callable[[QueueSpec], object], problem: str) -> list[QueueSpec]:
        """Return the chosen queues of a kind; without one, the error is the ``problem``, with the names for ``{}``."""
        found = [spec for spec in self.chosen if are(spec)]
        if not found:
            raise refusal(problem.format(", ".join(spec.entity.__name__ for spec in self.chosen)))
        return found

    @property
    def only(self) -> QueueSpec:
        """The one that ``--queue`` names, or the only one of the target; it is a usage error if there are several."""
        found = self.chosen
        if len(found) > 1:
            raise refusal(f"{self.target} has {len(found)} queues: use --queue with one of {names_of(found)}")
        return found[0]

    @property
    def with_batches(self) -> list[QueueSpec]:
        """Those of the chosen queues whose tasks can be in batches; it is a usage error if there are none."""
        return self.which(lambda spec: spec.has_latches, "the queues have no batches: derive {} from FlowMixin")

    def transact(self, work: Callable[[Session], R], *specs: QueueSpec) -> R:
        """See :func:`.transact`."""
        return transact(self.url, work, *specs)


def called(spec: QueueSpec) -> tuple[str, ...]:
    """Return the names by which ``--queue`` selects a queue: those of its model and of its table."""
    return spec.entity.__name__, spec.table.name, spec.name


def names_of(specs: Iterable[QueueSpec]) -> str:
    return ", ".join(spec.name for spec in specs)


# -- the options that select tasks ------------------------------------------------------------------------------------


def age(text: str) -> timedelta:
    """Parse a duration such as ``90s``, ``15m``, ``2h``, ``7d`` or ``1h30m``; anything else is a usage error."""
    try:
        return filtering.age(text)
    except ArgumentError as error:
        raise refusal(str(error)) from error


def duration(*names: str, metavar: str = "TIME", text: str) -> Any:
    """Return an option whose value is a duration, with ``text`` as its help."""
    return typer.Option(*names, metavar=metavar, parser=age, help=text)


def choice(values: Sequence[E]) -> Callable[[str], E]:
    """Return a parser of these ``values``; anything else is a usage error."""

    def parse(text: str) -> E:
        for each in values:
            if each == text:
                return each
        raise refusal(f"{text!r} is not one of {', '.join(repr(str(each)) for each in values)}")

    return parse


_state = choice([*Status])
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        "-s",
        metavar="STATES",
        help=f"Only tasks in these states, separated by commas; may be repeated. States: {', '.join(Status)}.",
    ),
]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="Only tasks of this topic.")]
Function = Annotated[
    str | None, typer.Option("--function", metavar="NAME", help="Only calls of this function, see JobMixin.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="KEY", help="Only this task; may be repeated. For a composite key: 'line 1,7'."),
]
ErrorLike = Annotated[
    str | None,
    typer.Option("--error", metavar="LIKE", help="Only tasks whose error matches; % matches any text: 'Timeout%'."),
]
InErrorGroup = Annotated[
    str | None,
    typer.Option(
        "--error-group", metavar="GROUP", help="Only tasks in this group of sqlqueue errors, which are not completed."
    ),
]
InBatch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="KEY",
        help="Only members of this batch, see sqlqueue batches; to change them, --queue is not required.",
    ),
]
_AGE_HELP = "Only tasks created longer ago than this: 90s, 15m, 2h, 7d."
Age = Annotated[timedelta | None, duration("--older-than", metavar="AGE", text=_AGE_HELP)]
Equal = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", metavar="COLUMN=VALUE", help="Only tasks with this value; may be repeated."),
]
Abandoned = Annotated[bool, typer.Option("--abandoned", help="Only running tasks whose lease has expired.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The options that select tasks: commands with a parameter of this type have them all."""

    status: Statuses = None
    topic: Topic = None
    function: Function = None
    ids: Ids = None
    error: ErrorLike = None
    error_group: InErrorGroup = None
    batch: InBatch = None
    older_than: Age = None
    where: Equal = None
    abandoned: Abandoned = False

    def verify(self, queues: Queues, spec: QueueSpec) -> None:
        """Refuse the key of a batch that does not exist: it may be mistyped, and would select nothing."""
        if (key := self.batch) is not None:
            queues.transact(lambda session: operations.refuse_unknown_batch(session, spec.entity, key), spec)

    def criteria(self, spec: QueueSpec) -> list[Criterion]:
        """Return the criteria of the options, all of which must hold; rejects filters that do not apply to the
        queue."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "where"}
        given["status"] = [_state(name.strip()) for text in self.status or () for name in text.split(",")]
        found = filtering.criteria(spec, **given)
        for text in self.where or ():
            found += filtering.criteria(spec, equal=equal(text))
        return found


def order(spec: QueueSpec, names: Iterable[str]) -> list[ColumnElement[Any]]:
    """Return ORDER BY terms: ``NAME`` ascending, ``-NAME`` descending; by default descending primary keys."""
    terms: list[ColumnElement[Any]] = [
        column(spec, name.removeprefix("-")).desc() if name.startswith("-") else column(spec, name).asc()
        for name in names
    ]
    return terms or [key.desc() for key in spec.primary_key]


def equal(text: str) -> dict[str, str]:
    name, sign, given = text.partition("=")
    if not sign:
        raise refusal(f"{text!r} is not of the form COLUMN=VALUE")
    return {name: given}
