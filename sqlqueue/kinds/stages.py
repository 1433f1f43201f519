"""Queues whose tasks go through stages."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import ColumnElement, case, literal, null
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.held import Held
from ..lifecycle.kind import Kind, Partition, Proposed
from ..model.columns import option
from ..model.mixins import QueueMixin
from ..queue.options import QueueOptions
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.selection import Assignment
from .lives import ATTEMPTS_BEFORE, SeveralLives

LONGEST_STAGE = 64


class Stages(SeveralLives):
    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if "stage" in roles and not options.stages:
            return "which stages are there? Name them in order: QueueOptions(stages=('fetch', 'parse'))"
        if options.stages and "stage" not in roles:
            return "stages are for models that derive from StageMixin"
        if any(len(stage) > LONGEST_STAGE for stage in options.stages):
            return f"the name of a stage has at most {LONGEST_STAGE} characters"
        if "stage" in roles and "schedule" in roles:
            return "a recurring task has no stages: let its last statement enqueue a task of another model"
        return None

    def goes_on(self, spec: QueueSpec, status: Status, stage: str | None) -> Criterion | None:
        if stage is not None:
            return spec["stage"].is_not(None)  # always so, and said in a way that every engine takes in a CASE
        if status is Status.COMPLETED and self.continues(spec):
            return spec["stage"].in_(list(_moves(spec)))
        return None

    def moved(self, held: Held, lives: Criterion, stage: str | None, *, failed: bool) -> list[Assignment]:
        """On to the named or the next stage; if the whole is to run again, it is where that begins already."""
        spec, again = held.spec, held.runs_again
        on: ColumnElement[str] = spec["stage"]
        if stage is not None:
            on = literal(stage, spec["stage"].type)
        elif self.continues(spec):
            # of its type: what is any text to SQLAlchemy loses characters on its way to SQL Server
            moves = ([literal(each, on.type) for each in move] for move in _moves(spec).items())
            on = case(*((before, after) for before, after in moves), value=on, else_=on)
        stays = [] if again is None else [(again, spec["stage"])]
        forgotten: list[Assignment] = [(spec["error"], case((lives, null()), else_=spec["error"]))]
        return [
            *(() if failed else forgotten),
            (spec["attempts_before"], case((lives, held.attempt), else_=spec["attempts_before"])),
            (spec["stage"], case(*stays, (lives, on), else_=spec["stage"])),
        ]

    def placed(
        self, spec: QueueSpec, names: Container[str], proposed: Proposed, kept: Criterion | None
    ) -> list[Assignment]:
        """At the first stage, or where the insert says.  At once, also in a run that is followed by another: whatever
        becomes of that, the other begins there."""
        stage = spec["stage"]
        first = proposed(stage.name) if stage.name in names else literal(spec.options.stages[0], stage.type)
        return [(stage, first if kept is None else case((kept, stage), else_=first))]

    def announces(self, spec: QueueSpec, how: str) -> bool:
        return how == "completed" and self.continues(spec)

    def continues(self, spec: QueueSpec) -> bool:
        return len(spec.options.stages) > 1


def _moves(spec: QueueSpec) -> dict[str, str]:
    """stage -> the next one; the last is in none."""
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
    """A queue whose tasks go through the ``stages`` that :class:`.QueueOptions` names, from the first on.

    ``complete`` moves a task to the next stage, where it is available at once with all its attempts; the last stage
    completes it.  A claim with ``Task.stage == "..."`` has an index of its own.
    """

    __queue_kind__: ClassVar[Kind | None] = STAGES

    if TYPE_CHECKING:
        stage: Mapped[str]
        attempts_before: Mapped[int]
        """How many attempts the stages before took."""
