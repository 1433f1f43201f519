"""The common base of kinds whose tasks get all their attempts again in each stage or run."""

from __future__ import annotations

from sqlalchemy import Column, case

from ..lifecycle.fence import Fence
from ..lifecycle.kind import ColumnMaker, Kind
from ..model.columns import counter
from ..queue.spec import Criterion, QueueSpec
from ..sql.changes import Assignment

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
