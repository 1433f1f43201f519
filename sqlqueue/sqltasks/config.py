"""The configuration of a scheduler: its databases and their settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any

from .._support.checks import at_once, count, duration
from .._support.exc import ArgumentError

_DURATIONS = ("poll", "timeout")
_KINDS: Sequence[tuple[str, Any, str]] = (
    ("url", str, "a URL"),
    ("schemas", (tuple, list), "a list of schemas"),
    ("table", str, "the name of a table"),
    ("create", bool, "true or false"),
    ("execute_url", (str, NoneType), "a URL"),
    ("users", Mapping, "URLs by the names of users"),
    ("queues", Mapping, "limits by the names of queues"),
)
"""Fields, their types, and words for these.  Messages do not repeat a value, which may contain a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLTaskDatabase:
    """One database whose SQL tasks a scheduler executes.

    - ``url``: the database of the tasks.
    - ``schemas``: the schemas of the tasks, by default that of the connection.
    - ``table``: the name of their table, ``sql_task`` by default.
    - ``create``: whether to create missing tables; false by default.
    - ``execute_url``: the user and database of requests without ``run_as``, by default ``url``.
    - ``users``: URLs by the names that ``run_as`` can contain; none by default. Anyone who can insert a row can choose
      among these.
    - ``queues``: how many tasks of a queue run at once, by name; one for other queues.
    - ``concurrency``: how many tasks of a schema run at once, across its queues; 10 by default.
    - ``poll``: the longest time between two queries for work; 3 seconds by default.
    - ``timeout``: the longest time of a request; an hour by default.
    - ``response_limit``: the maximum size of a response in characters, a million by default; rows beyond it are read,
      one at a time, and left out.

    Raises :class:`.ArgumentError` for values of other types, for durations, ``concurrency`` and ``response_limit`` that
    are not positive, and for limits of queues above 10,000.  ``repr`` leaves out the URLs, which may contain passwords.
    """

    url: str = field(repr=False)
    schemas: tuple[str, ...] = ()
    table: str = "sql_task"
    create: bool = False
    execute_url: str | None = field(default=None, repr=False)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    queues: Mapping[str, int] = field(default_factory=dict)
    concurrency: int = 10
    poll: timedelta = timedelta(seconds=3)
    timeout: timedelta = timedelta(hours=1)
    response_limit: int = 1_000_000

    def __post_init__(self) -> None:
        for name, kind, wanted in _KINDS:
            if not isinstance(value := getattr(self, name), kind):
                raise ArgumentError(f"{name} is of type {type(value).__name__}: give {wanted}")
        for value in (*self.schemas, *self.users.values()):
            if not isinstance(value, str):
                raise ArgumentError(f"schemas or users contain a value of type {type(value).__name__}: give text")
        for name in _DURATIONS:
            duration(name, getattr(self, name))
        count("concurrency", self.concurrency)
        count("response_limit", self.response_limit)
        for name, limit in self.queues.items():
            at_once(f"queues: {name}", limit, least=0)


def read_config(path: str | Path) -> list[SQLTaskDatabase]:
    """Read a TOML file and return its databases: tables ``[[database]]`` with the fields of :class:`SQLTaskDatabase`.

    Durations are numbers of seconds.  Raises :class:`.ArgumentError` for an unusable file; its message names the
    problem.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"{path}: {error}") from error
    tables = found.pop("database", None)
    if found or not isinstance(tables, list) or not tables:
        raise ArgumentError(f"{path}: give one or more tables [[database]], and nothing else")
    return [_database(f"{path}: database {number}", table) for number, table in enumerate(tables, 1)]


def _database(where: str, table: dict[str, Any]) -> SQLTaskDatabase:
    known = {each.name for each in fields(SQLTaskDatabase)}
    unknown = sorted(set(table) - known)
    if unknown or "url" not in table:
        problem = f"unknown key {', '.join(unknown)}" if unknown else "url is missing"
        raise ArgumentError(f"{where}: {problem}; the keys are {', '.join(sorted(known))}")
    values = dict(table)
    try:
        values.update((name, timedelta(seconds=values[name])) for name in _DURATIONS if name in values)
        return SQLTaskDatabase(**values)
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(f"{where}: {error}") from error
