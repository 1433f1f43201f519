"""The kinds of queues: each module is a mixin, and what it adds to a queue as a :class:`.Kind`.

A new kind is a module here, an import below, and its documentation.
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
