"""The optional kinds of queues: each mixin with its :class:`.Kind`, which adds to the declaration of queues that use it
(:mod:`sqlqueue.model`), and with the functions that operations call for them.

To add a kind, add it here, an import below, and its documentation.  What it writes to its columns when a task
changes its state stands in :mod:`sqlqueue.lifecycle`, where the order of all assignments is seen.
"""

from .columns import (
    ExpiryMixin,
    FlowMixin,
    JobMixin,
    OutboxMixin,
    ProgressMixin,
    ResultMixin,
    StepMixin,
    TopicMixin,
    TraceMixin,
    UniqueMixin,
)
from .limits import LimitMixin, SlotMixin
from .recurring import RecurringMixin, StageMixin

__all__ = [
    "ExpiryMixin",
    "FlowMixin",
    "JobMixin",
    "LimitMixin",
    "OutboxMixin",
    "ProgressMixin",
    "RecurringMixin",
    "ResultMixin",
    "SlotMixin",
    "StageMixin",
    "StepMixin",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
]
