"""The optional kinds of queues: each mixin with its :class:`.Kind`, which adds to the declaration
(:mod:`sqlqueue.model`) and to the transitions (:mod:`sqlqueue.lifecycle`) of queues that use it.

To add a kind, add a module here, an import below, and its documentation.
"""

from .columns import JobMixin, ResultMixin, TopicMixin, TraceMixin, UniqueMixin
from .limits import LimitMixin, SlotMixin
from .outbox import OutboxMixin
from .recurring import RecurringMixin
from .stages import StageMixin

__all__ = [
    "JobMixin",
    "LimitMixin",
    "OutboxMixin",
    "RecurringMixin",
    "ResultMixin",
    "SlotMixin",
    "StageMixin",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
]
