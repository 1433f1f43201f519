"""The table of ``sqlqueue list``: one line for each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from sqlalchemy import LargeBinary, Text

from ..operations.filtering import column
from ..queue.spec import QueueSpec
from ._output import GAP, plain, print_table, width

Facts = Mapping[str, Any]
"""A task as ``sqlqueue list --json`` prints it."""
_ROLES = ("status", "topic", "task", "stage", "attempt", "available_at")
_LONGEST = 24
"""Maximum characters shown of an application's value."""
_ERROR = 16
"""Characters reserved for the error column, if there are errors."""


class _Column(NamedTuple):
    name: str
    is_role: bool = False

    @property
    def heading(self) -> str:
        return self.name.replace("_", " ") if self.is_role else self.name

    def value(self, task: Facts) -> object:
        """Return the value of ``task`` in this column, shortened to fit on a line."""
        if not self.is_role:
            return _cut(task["columns"][self.name])
        if self.name == "attempt":
            return f"{task['attempt']}/{task['max_attempts']}"
        found = task[self.name]
        if self.name == "error":
            return found and found.partition("\n")[0]
        return _cut(found)

    def width(self, tasks: Sequence[Facts]) -> int:
        return max(len(self.heading), *(width(plain(self.value(task))) for task in tasks))


def _cut(value: object) -> object:
    if not isinstance(value, (str, bytes, dict, list)):
        return value
    line = str(value).partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def columns_of(spec: QueueSpec, names: str) -> list[_Column]:
    """Return the columns that ``--columns`` names, which are the model's attribute names."""
    return [_column(spec, name.strip()) for name in names.split(",")]


def print_tasks(spec: QueueSpec, tasks: Sequence[Facts], columns: Sequence[_Column] | None) -> None:
    """Print ``columns``; by default the queue's columns and as many of the model's own as fit."""
    if columns is None:
        queues = [_Column(role, is_role=True) for role in _ROLES if role in spec.columns]
        columns = [*queues, *_fitting(spec, tasks, queues), _Column("error", is_role=True)]
    rows = [[task["key"], *(each.value(task) for each in columns)] for task in tasks]
    print_table(["Key", *(each.heading for each in columns)], rows, one_line=True)


def _column(spec: QueueSpec, name: str) -> _Column:
    column(spec, name)
    role = next((role for role, attribute in spec.attributes.items() if attribute == name), None)
    return _Column(name) if role is None else _Column(role, is_role=True)


def _fitting(spec: QueueSpec, tasks: Sequence[Facts], others: Sequence[_Column]) -> Iterator[_Column]:
    """Yield the first of the model's own columns with short, non-empty values, as long as they fit."""
    room = Console().width - max(len(str(task["key"])) for task in tasks)
    room -= sum(GAP + each.width(tasks) for each in others)
    room -= GAP + (_ERROR if any(task["error"] for task in tasks) else len("error"))
    for prop in spec.mapper.column_attrs:
        stored = prop.columns[0]
        if prop.key not in tasks[0]["columns"] or stored.primary_key or isinstance(stored.type, (LargeBinary, Text)):
            continue
        own = _Column(prop.key)
        needed = GAP + own.width(tasks)
        if needed <= room and any(own.value(task) not in (None, "") for task in tasks):
            room -= needed
            yield own
