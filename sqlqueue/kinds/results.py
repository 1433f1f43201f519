"""Queues that store the results of their tasks."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import case, null
from sqlalchemy.orm import Mapped

from ..dialects import json_type
from ..lifecycle.kind import Kind
from ..model.columns import check_stored_json, optional
from ..model.mixins import QueueMixin
from ..queue.options import QueueOptions
from ..queue.spec import Criterion, QueueSpec
from ..sql.changes import Assignment


class Results(Kind):
    """Clears the result of an earlier run when a task is reactivated."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "result" in roles and options.on_complete == "delete":
            return "on_complete='delete' would delete the result with the task: choose on_complete='keep'"
        return None

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        return [(spec["result"], case((running, spec["result"]), else_=null()))]

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec["result"], null())]


RESULTS = Results(
    columns={"result": lambda _: optional(json_type())},
    checks={"result": check_stored_json},
    untold=("result",),
    keeps_results=True,
)


class ResultMixin(QueueMixin):
    """A queue that stores the results of its tasks: those given to ``complete``, or the return values of handlers."""

    __queue_kind__: ClassVar[Kind | None] = RESULTS

    if TYPE_CHECKING:
        result: Mapped[Any]
        """The result as JSON; ``None`` until the task is completed."""
