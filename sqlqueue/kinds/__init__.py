"""The optional kinds of queues: each mixin with its :class:`.Kind`, which adds to the declaration
(:mod:`sqlqueue.model`) and to the transitions (:mod:`sqlqueue.lifecycle`) of queues that use it.

To add a kind, add a module here, an import below, and its documentation.
"""

from .jobs import JobMixin
from .limits import LimitMixin, SlotMixin
from .outbox import OutboxMixin
from .recurring import RecurringMixin
from .results import ResultMixin
from .stages import StageMixin
from .topics import TopicMixin
from .traces import TraceMixin
from .unique import UniqueMixin

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
