"""The option ``--queue``: the queues that a command applies to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from ..diagnostics.check import specs_of
from ..lifecycle.kind import holds_tasks
from ..queue.spec import QueueSpec
from ._output import refusal
from ._target import load

Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="The name of the queue's model or table, if there are several.",
    ),
]


def queues_of(target: str, name: str | None) -> list[QueueSpec]:
    """Return the queues of ``target`` that hold tasks, or the one called ``name``; it is a usage error if there is
    none."""
    every = specs_of(load(target))
    found = [spec for spec in every if holds_tasks(spec)]
    if not found:
        raise refusal(f"{_names(every)} holds the slots of limits, not tasks: name the model with the limits")
    chosen = [spec for spec in found if name in (None, spec.entity.__name__, spec.table.name, spec.table.fullname)]
    if not chosen:
        raise refusal(f"there is no queue {name} in {target}; its queues are {_names(found)}")
    return chosen


def queue_of(target: str, name: str | None) -> QueueSpec:
    """Return the queue called ``name``, or the only one of ``target``; it is a usage error if there are several."""
    found = queues_of(target, name)
    if len(found) > 1:
        raise refusal(f"{target} has {len(found)} queues: use --queue with one of {_names(found)}")
    return found[0]


def _names(specs: Iterable[QueueSpec]) -> str:
    return ", ".join(spec.entity.__name__ for spec in specs)
