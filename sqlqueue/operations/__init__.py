"""The operations: functions of a session, which everything else calls."""

from ._connection import default_claimer
from .claiming import claim, claim_many, claiming, consume, consume_many
from .enqueueing import enqueue
from .listing import find
from .sets import ErrorGroup, QueueStats, errors, prune, rescue, retry, stats
from .settling import cancel, complete, discard, fail, heartbeat, release, snooze

__all__ = [
    "ErrorGroup",
    "QueueStats",
    "cancel",
    "claim",
    "claim_many",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "default_claimer",
    "discard",
    "enqueue",
    "errors",
    "fail",
    "find",
    "heartbeat",
    "prune",
    "release",
    "rescue",
    "retry",
    "snooze",
    "stats",
]
