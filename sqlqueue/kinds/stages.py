"""Pipelines: tasks that go through stages, each with attempts of its own."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import case
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.kind import ColumnMaker, Kind, Partition
from ..model.declaration import QueueMixin, counter, option
from ..queue.options import AttemptOutcome, QueueOptions
from ..queue.spec import Criterion, QueueSpec
from ..sql import Assignment

# -- the common base of kinds whose tasks get all their attempts again in each stage or run ---------------------------

ATTEMPTS_BEFORE: dict[str, ColumnMaker] = {"attempts_before": lambda _: counter()}


class SeveralLives(Kind):
    """A kind that counts the attempts of a task's earlier stages or runs in ``attempts_before``."""

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        before = spec["attempts_before"]
        return [(before, case((running, before), else_=spec["attempt"]))]

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        return [(spec["attempts_before"], spec["attempt"])]


# -- queues whose tasks go through stages -----------------------------------------------------------------------------

LONGEST_STAGE = 64


class Stages(SeveralLives):
    """Moves a completed task to its next stage, where it gets all its attempts again."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "stage" in roles and not options.stages:
            return "stages= is missing: name the stages in order: QueueOptions(stages=('fetch', 'parse'))"
        if options.stages and "stage" not in roles:
            return "stages= is for models that derive from StageMixin"
        if any(len(stage) > LONGEST_STAGE for stage in options.stages):
            return f"the name of a stage can have at most {LONGEST_STAGE} characters"
        if "stage" in roles and "schedule" in roles:
            return "a recurring task cannot have stages: enqueue a task of another model at the end of each run"
        return None

    def announces(self, spec: QueueSpec, outcome: AttemptOutcome) -> bool:
        return outcome is AttemptOutcome.COMPLETED and self.continues(spec)

    def continues(self, spec: QueueSpec) -> bool:
        return len(spec.options.stages) > 1


STAGES = Stages(
    columns={
        "stage": lambda options: option(key_type(LONGEST_STAGE), options.stages[0]),
        **ATTEMPTS_BEFORE,
    },
    checks={"stage": checks.key},
    partition=Partition("stage", width=3),
    written_by_queue=("attempts_before",),
)


class StageMixin(QueueMixin):
    """A queue whose tasks go through the ``stages`` of its :class:`.QueueOptions` in order.

    ``complete`` moves a task to the next stage, where it is available at once with all its attempts; in the last stage
    it completes the task.  Claims with ``Task.stage == "..."`` have their own index.
    """

    __queue_kind__: ClassVar[Kind | None] = STAGES

    if TYPE_CHECKING:
        stage: Mapped[str]
        """The current stage."""
        attempts_before: Mapped[int]
        """The number of attempts in previous stages."""
