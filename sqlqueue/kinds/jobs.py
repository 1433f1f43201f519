"""Queues of function calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import json_type, key_type
from ..lifecycle.kind import Kind, Partition
from ..model.columns import check_stored_json, optional
from ..model.mixins import QueueMixin

LONGEST_TASK = 255
"""The maximum length of a function's name, in characters."""


JOBS = Kind(
    columns={
        "task": lambda _: {"type_": key_type(LONGEST_TASK), "nullable": False},
        "arguments": lambda _: optional(json_type()),
    },
    checks={"task": checks.key, "arguments": check_stored_json},
    untouched=("task", "arguments"),
    partition=Partition("task", width=3),
)


class JobMixin(QueueMixin):
    """A queue of function calls: each row stores a function's name and arguments, see :meth:`.Worker.task`.

    Claims by ``Job.task`` have their own index.
    """

    __queue_kind__: ClassVar[Kind | None] = JOBS

    if TYPE_CHECKING:
        task: Mapped[str]
        """The name of the function."""
        arguments: Mapped[dict[str, Any] | None]
        """The function's arguments by name, as JSON; missing arguments get their defaults when the function is
        called."""
