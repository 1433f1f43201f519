"""Changes that operators make to all tasks that match some criteria, in batches that each commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import or_
from sqlalchemy.orm import Session

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import FINAL, Status
from ..sql.criteria import only
from ..sql.states import is_hung, state
from .batches import BATCH, Batch, in_batches
from .reactivating import rerun, retry
from .running_now import WAITING, run_now
from .session_criteria import within
from .settling import cancel, discard

_UNFINISHED = tuple(status for status in Status if status not in FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MassChange:
    """A change, and the tasks that it applies to."""

    change: Callable[..., int]
    """The operation; takes a session, a model and criteria."""
    states: Collection[Status]
    """The states of the tasks that it changes."""
    hung: bool = False
    """Whether it also changes running tasks whose lease has expired."""

    def affected(self, spec: QueueSpec) -> Criterion:
        """Return the criterion of tasks in these states."""
        return in_states(spec, self.states, hung=self.hung)

    def in_batches(self, session: Session, spec: QueueSpec, where: Sequence[Criterion]) -> Iterator[Batch]:
        """Change the tasks that satisfy ``where``, and commit after each batch."""
        chosen = only(spec, self.affected(spec), *within(session, spec, where))
        change = self.change
        return in_batches(session, spec, chosen, lambda some: change(session, spec.entity, some, *where), size=BATCH)


def in_states(spec: QueueSpec, states: Iterable[Status], *, hung: bool) -> Criterion:
    """Return the criterion of tasks in these states, and of hung tasks if ``hung``."""
    in_state = spec["status"].in_([state(status) for status in states])
    return or_(in_state, is_hung(spec)) if hung else in_state


RETRY = MassChange(change=retry, states=(Status.RETRYABLE, Status.DISCARDED), hung=True)
RERUN = MassChange(change=rerun, states=FINAL)
CANCEL = MassChange(change=cancel, states=_UNFINISHED)
RUN_NOW = MassChange(change=run_now, states=WAITING)


def discarding(reason: str) -> MassChange:
    """Return the change that discards tasks, with ``reason`` as their error."""
    change: Callable[..., int] = partial(discard, error=reason)  # type: ignore[assignment]
    return MassChange(change=change, states=_UNFINISHED)
