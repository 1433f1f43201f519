"""The operations: functions of a session, which everything else calls."""

from ..transaction.connection import default_claimer
from .bulk import ErrorGroup, errors, rescue, retry
from .claiming import claim, claim_many, claiming, consume, consume_many
from .declared_schedules import DeclaredSchedules, declare_schedules
from .enqueueing import enqueue
from .fair import claim_in_turns
from .finding import find
from .limits import Limit, limits, set_limit
from .pausing import Pause, pause, paused, resume
from .pruning import Pruned, prune
from .rescheduling import reschedule, unschedule
from .settling import cancel, complete, discard, fail, heartbeat, release, snooze
from .statistics import QueueOverview, QueueStats, hung, overview, stats, stats_by
from .timeline import Bucket, Durations, timeline

__all__ = [
    "Bucket",
    "DeclaredSchedules",
    "Durations",
    "ErrorGroup",
    "Limit",
    "Pause",
    "Pruned",
    "QueueOverview",
    "QueueStats",
    "cancel",
    "claim",
    "claim_in_turns",
    "claim_many",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "declare_schedules",
    "default_claimer",
    "discard",
    "enqueue",
    "errors",
    "fail",
    "find",
    "heartbeat",
    "hung",
    "limits",
    "overview",
    "pause",
    "paused",
    "prune",
    "release",
    "reschedule",
    "rescue",
    "resume",
    "retry",
    "set_limit",
    "snooze",
    "stats",
    "stats_by",
    "timeline",
    "unschedule",
]
