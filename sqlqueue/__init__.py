"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

from typing import TYPE_CHECKING

from ._support.claim import Claim
from ._support.exc import (
    ArgumentError,
    ClaimLostError,
    ConfigurationError,
    DuplicateTaskError,
    HandlerNotFoundError,
    IllegalTransitionError,
    ProcessDiedError,
    SchemaMismatchError,
    SQLQueueError,
    SQLQueueWarning,
    UnsettledClaimError,
    UnsupportedDialectError,
    UnsupportedIsolationError,
)
from .diagnostics.check import check, verify_schema
from .diagnostics.old_alembic import watch as _watch
from .kinds import (
    JobMixin,
    LimitMixin,
    RecurringMixin,
    ResultMixin,
    SlotMixin,
    StageMixin,
    TopicMixin,
    TraceMixin,
    UniqueMixin,
)
from .lifecycle.reasons import Cause, Holder, Reason
from .model.history import HistoryMixin
from .model.mixins import QueueMixin
from .model.pause import PauseMixin
from .model.registry import WorkerMixin
from .operations import (
    Bucket,
    Command,
    DeclaredSchedules,
    Durations,
    ErrorGroup,
    Explanation,
    HandlerInfo,
    Limit,
    PastAttempt,
    Pause,
    Pruned,
    QueueOverview,
    QueueStats,
    WorkerInfo,
    cancel,
    claim,
    claim_in_turns,
    claim_many,
    claiming,
    complete,
    consume,
    consume_many,
    declare_schedules,
    discard,
    drain_workers,
    enqueue,
    errors,
    fail,
    find,
    heartbeat,
    history,
    hung,
    limits,
    overview,
    pause,
    paused,
    prune,
    prune_history,
    release,
    reschedule,
    rescue,
    resume,
    retry,
    run_now,
    set_concurrency,
    set_limit,
    snooze,
    stats,
    stats_by,
    stop_workers,
    timeline,
    unschedule,
    unserved,
    why,
    workers,
)
from .queue.findings import Finding, Severity
from .queue.history import AttemptOutcome, HistoryOptions
from .queue.options import QueueOptions
from .queue.retries import ConstantBackoff, ExponentialBackoff, LinearBackoff, RetryByError, RetryPolicy
from .queue.schedules import Cron, Every
from .queue.status import Status
from .session import QueueSession
from .sql.clock import utcnow
from .transaction.claims import claim_of
from .worker import Cancel, Discard, Retry, Snooze, Worker, current_job

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession

__all__ = [
    "ArgumentError",
    "AsyncQueueSession",
    "AttemptOutcome",
    "Bucket",
    "Cancel",
    "Cause",
    "Claim",
    "ClaimLostError",
    "Command",
    "ConfigurationError",
    "ConstantBackoff",
    "Cron",
    "DeclaredSchedules",
    "Discard",
    "DuplicateTaskError",
    "Durations",
    "ErrorGroup",
    "Every",
    "Explanation",
    "ExponentialBackoff",
    "Finding",
    "HandlerInfo",
    "HandlerNotFoundError",
    "HistoryMixin",
    "HistoryOptions",
    "Holder",
    "IllegalTransitionError",
    "JobMixin",
    "Limit",
    "LimitMixin",
    "LinearBackoff",
    "PastAttempt",
    "Pause",
    "PauseMixin",
    "ProcessDiedError",
    "Pruned",
    "QueueMixin",
    "QueueOptions",
    "QueueOverview",
    "QueueSession",
    "QueueStats",
    "Reason",
    "RecurringMixin",
    "ResultMixin",
    "Retry",
    "RetryByError",
    "RetryPolicy",
    "SQLQueueError",
    "SQLQueueWarning",
    "SchemaMismatchError",
    "Severity",
    "SlotMixin",
    "Snooze",
    "StageMixin",
    "Status",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "Worker",
    "WorkerInfo",
    "WorkerMixin",
    "cancel",
    "check",
    "claim",
    "claim_in_turns",
    "claim_many",
    "claim_of",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "current_job",
    "declare_schedules",
    "discard",
    "drain_workers",
    "enqueue",
    "errors",
    "fail",
    "find",
    "heartbeat",
    "history",
    "hung",
    "limits",
    "overview",
    "pause",
    "paused",
    "prune",
    "prune_history",
    "release",
    "reschedule",
    "rescue",
    "resume",
    "retry",
    "run_now",
    "set_concurrency",
    "set_limit",
    "snooze",
    "stats",
    "stats_by",
    "stop_workers",
    "timeline",
    "unschedule",
    "unserved",
    "utcnow",
    "verify_schema",
    "why",
    "workers",
]


def __getattr__(name: str) -> object:
    """Import ``AsyncQueueSession`` on first use, since it needs greenlet, which may not be installed."""
    if name == "AsyncQueueSession":
        from .asyncio import AsyncQueueSession  # noqa: PLC0415

        return AsyncQueueSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_watch()
