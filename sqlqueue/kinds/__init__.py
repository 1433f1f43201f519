"""The optional kinds of queues: each mixin with its :class:`.Kind`, which adds to the declaration of queues that use it
(:mod:`sqlqueue.model`), and with the functions that operations call for them.

To add a kind, add it here, an import below, and its documentation.  What it writes to its columns when a task
changes its state stands in :mod:`sqlqueue.lifecycle`, where the order of all assignments is seen.
"""

from .columns import ExpiryMixin as ExpiryMixin
from .columns import FlowMixin as FlowMixin
from .columns import JobMixin as JobMixin
from .columns import OutboxMixin as OutboxMixin
from .columns import ProgressMixin as ProgressMixin
from .columns import ResultMixin as ResultMixin
from .columns import StepMixin as StepMixin
from .columns import TopicMixin as TopicMixin
from .columns import TraceMixin as TraceMixin
from .columns import UniqueMixin as UniqueMixin
from .limits import LimitMixin as LimitMixin
from .limits import SlotMixin as SlotMixin
from .recurring import RecurringMixin as RecurringMixin
from .recurring import StageMixin as StageMixin
