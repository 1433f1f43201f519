"""Pipelines: tasks that go through stages, each with attempts of its own."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Column, ColumnElement, case, literal, null
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.fence import Fence
from ..lifecycle.kind import ColumnMaker, Kind, Partition, Proposed
from ..model.declaration import QueueMixin, counter, option
from ..queue.options import QueueOptions, Status
from ..queue.spec import Criterion, QueueSpec
from ..sql.rows import Assignment

# -- the common base of kinds whose tasks get all their attempts again in each stage or run ---------------------------

ATTEMPTS_BEFORE: dict[str, ColumnMaker] = {"attempts_before": lambda _: counter()}


class SeveralLives(Kind):
    """A kind that counts the attempts of a task's earlier stages or runs in ``attempts_before``."""

    def earlier_attempts(self, spec: QueueSpec) -> Column[int] | None:
        return spec["attempts_before"]

    def rerun(self, fence: Fence, again: Criterion) -> list[Assignment]:
        before = fence.spec["attempts_before"]
        return [(before, case((again, fence.attempt), else_=before))]

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

    def goes_on(self, spec: QueueSpec, status: Status, stage: str | None) -> Criterion | None:
        if stage is not None:
            return spec["stage"].is_not(None)  # always true, in a form that every engine accepts in a CASE
        if status is Status.COMPLETED and self.continues(spec):
            return spec["stage"].in_(list(_moves(spec)))
        return None

    def moved(self, fence: Fence, lives: Criterion, stage: str | None, *, failed: bool) -> list[Assignment]:
        """Move the task to the given or the next stage.

        A task that was enqueued again while it ran is already at the stage where its next run starts.
        """
        spec, again = fence.spec, fence.runs_again
        on: ColumnElement[str] = spec["stage"]
        if stage is not None:
            on = literal(stage, spec["stage"].type)
        elif self.continues(spec):
            # with the column's type: a plain string literal would lose characters on SQL Server
            moves = ([literal(each, on.type) for each in move] for move in _moves(spec).items())
            on = case(*((before, after) for before, after in moves), value=on, else_=on)
        stays = [] if again is None else [(again, spec["stage"])]
        forgotten: list[Assignment] = [(spec["error"], case((lives, null()), else_=spec["error"]))]
        return [
            *(() if failed else forgotten),
            (spec["attempts_before"], case((lives, fence.attempt), else_=spec["attempts_before"])),
            (spec["stage"], case(*stays, (lives, on), else_=spec["stage"])),
        ]

    def placed(
        self, spec: QueueSpec, names: Container[str], proposed: Proposed, kept: Criterion | None
    ) -> list[Assignment]:
        """Start at the first stage, or at the one that the insert sets.

        Assigned at once even if the task is running and runs again: however this run ends, the next one starts there.
        """
        stage = spec["stage"]
        first = proposed(stage.name) if stage.name in names else literal(spec.options.stages[0], stage.type)
        return [(stage, first if kept is None else case((kept, stage), else_=first))]

    def announces(self, spec: QueueSpec, how: str) -> bool:
        return how == "completed" and self.continues(spec)

    def continues(self, spec: QueueSpec) -> bool:
        return len(spec.options.stages) > 1


def _moves(spec: QueueSpec) -> dict[str, str]:
    """Map each stage to the next one; the last stage is not a key."""
    return dict(pairwise(spec.options.stages))


STAGES = Stages(
    columns={
        "stage": lambda options: option(key_type(LONGEST_STAGE), options.stages[0]),
        **ATTEMPTS_BEFORE,
    },
    checks={"stage": checks.key},
    partition=Partition("stage", width=3),
    untold=("attempts_before",),
    placed_by="stage",
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
