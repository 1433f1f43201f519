"""The command ``enqueue``: a call of a function, or a task of a model, from JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import typer
from sqlalchemy import Column
from sqlalchemy.orm import Session

from .. import operations
from .._support.texts import key_text
from ..functions import TaskFunction
from ..operations.filtering import column, value
from ..queue.spec import QueueSpec, spec_of
from ._database import transact
from ._options import AsJson, Queue, Queues, Url, duration, equal, load
from ._output import plain, refusal, report

FunctionOrModel = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE",
        help="A function registered with @worker.task, such as myapp.jobs:send_reminder, or the model, base or MetaData"
        " of a queue. The current directory is on the import path.",
    ),
]
Given = Annotated[
    str,
    typer.Argument(metavar="JSON", help="The function's arguments by name, or the model's attributes, as an object."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="COLUMN=VALUE", help="Another column of the row, such as topic; may be repeated."),
]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="The smallest runs first. Default: 0.")]
Delay = Annotated[
    timedelta | None, duration("--delay", text="Do not start it before this time has passed: 90s, 15m, 2h.")
]
Expires = Annotated[timedelta | None, duration("--expires", text="Do not start it after this time has passed.")]


def enqueue(
    target: FunctionOrModel,
    given: Given = "{}",
    *,
    url: Url,
    queue: Queue = None,
    columns: Set = None,
    priority: Priority = None,
    delay: Delay = None,
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a task: a call of a function, or a row of a model.

        sqlqueue enqueue --url postgresql+psycopg://me@host/shop shop.jobs:send_reminder '{"invoice": 4711}'
        sqlqueue enqueue --url postgresql+psycopg://me@host/shop shop.models:Email '{"recipient": "a@example.org"}'

    Arguments must fit the parameters of the function and their annotations; attributes must be columns of the model.
    Texts stand for what JSON does not have, such as times in ISO 8601. Prints the key of the task, for sqlqueue show.

    With --json: an object of queue (its table), key, status and available_at.

    Exit status: 0; 2 for bad usage, values that do not fit, a task that exists, or a database that does not respond.
    """
    found, values = load(target), _object(given)
    is_function = isinstance(found, TaskFunction)
    spec = spec_of(found.entity) if is_function else Queues(target=target, url=url, queue=queue).only
    others: dict[str, Any] = {name: text for each in columns or () for name, text in equal(each).items()}
    if priority is not None:
        others[spec.attributes["priority"]] = priority
    task = found.options(**_converted(spec, others)).job_from(values) if is_function else _task(spec, values | others)
    stored = transact(url, lambda session: _stored(session, spec, task, delay, expires), spec)
    when = "" if stored["status"] == "available" else f", due at {plain(stored['available_at'])}"
    report(stored, f"{spec.name} {stored['key']} is {stored['status']}{when}.", as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise refusal(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise refusal(f"""{text!r} is not a JSON object: give values by name, as in '{{"name": "value"}}'""")
    return found


def _task(spec: QueueSpec, values: dict[str, Any]) -> Any:
    converted = _converted(spec, values)
    missing = [prop.key for prop in spec.mapper.column_attrs if _is_missing(prop.columns[0], prop.key, converted)]
    if missing:
        raise refusal(f"{spec.entity.__name__} needs {', '.join(missing)}")
    try:
        return spec.entity(**converted)
    except TypeError as error:
        raise refusal(f"{spec.entity.__name__} cannot be created: {error}") from error


def _is_missing(stored: Any, name: str, values: dict[str, Any]) -> bool:
    """Return whether the row would have no value in a column that needs one."""
    if name in values or not isinstance(stored, Column) or stored.nullable:
        return False
    is_generated = stored.primary_key and stored is stored.table.autoincrement_column
    return not is_generated and stored.default is None and stored.server_default is None


def _converted(spec: QueueSpec, values: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(spec, name, each) for name, each in values.items() if each is not None}


def _value(spec: QueueSpec, name: str, given: Any) -> Any:
    """Return a JSON value as one of the column ``name``."""
    stored = column(spec, name)
    try:
        kind: Any = stored.type.python_type
    except NotImplementedError:
        return given
    if issubclass(kind, (dict, list)):
        return given
    match given:
        case str():
            fits = True
        case bool():
            fits = kind is bool
        case _:
            fits = isinstance(given, (int, float)) and kind in (int, float, Decimal)
    if not fits:
        raise refusal(f"{name}: {json.dumps(given)} is not a value of the type {stored.type}")
    return value(stored, str(given))


def _stored(
    session: Session, spec: QueueSpec, task: Any, delay: timedelta | None, expires: timedelta | None
) -> dict[str, Any]:
    operations.enqueue(session, task, delay=delay, expires=expires)
    session.flush()
    session.refresh(task)
    names = {role: getattr(task, spec.attributes[role]) for role in ("status", "available_at")}
    return {"queue": spec.name, "key": key_text(spec.identity_of(task)), **names}
