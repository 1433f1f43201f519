"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from ._support.errors import (
    ArgumentError,
    BatchClosedError,
    Claim,
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
from .queue.options import AttemptOutcome, HistoryOptions, LatchOptions, QueueOptions, Rate, Status
from .queue.retries import ConstantBackoff, ExponentialBackoff, LinearBackoff, RetryByError, RetryPolicy
from .queue.schedules import Cron, Every
from .queue.spec import Finding, Severity

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession
    from .diagnostics.check import check, verify_schema
    from .kinds import (
        ExpiryMixin,
        FlowMixin,
        JobMixin,
        LimitMixin,
        ProgressMixin,
        RecurringMixin,
        ResultMixin,
        SlotMixin,
        StageMixin,
        StepMixin,
        TopicMixin,
        TraceMixin,
        UniqueMixin,
    )
    from .lifecycle.kind import Cause, Holder, Reason
    from .model.companions import HistoryMixin, LatchMixin, PauseMixin, WorkerMixin
    from .model.declaration import QueueMixin
    from .operations import *
    from .session import QueueSession
    from .sql import utcnow
    from .transaction import claim_of
    from .worker import (
        AsyncSteps,
        Cancel,
        Discard,
        JSONLogFormatter,
        Retry,
        Snooze,
        Steps,
        TaskLogFilter,
        Worker,
        current_job,
        log_fields,
    )

__all__ = [
    "ArgumentError",
    "AsyncQueueSession",
    "AsyncSteps",
    "AttemptOutcome",
    "BatchClosedError",
    "BatchInfo",
    "BatchProgress",
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
    "Event",
    "Every",
    "ExpiryMixin",
    "Explanation",
    "ExponentialBackoff",
    "Finding",
    "FlowEdge",
    "FlowMixin",
    "FlowNode",
    "Graph",
    "HandlerInfo",
    "HandlerNotFoundError",
    "HistoryMixin",
    "HistoryOptions",
    "Holder",
    "IllegalTransitionError",
    "JSONLogFormatter",
    "JobMixin",
    "KeyBlock",
    "KeyState",
    "LatchMixin",
    "LatchOptions",
    "Limit",
    "LimitMixin",
    "LinearBackoff",
    "PastAttempt",
    "Pause",
    "PauseMixin",
    "ProcessDiedError",
    "ProgressMixin",
    "Pruned",
    "QueueMixin",
    "QueueOptions",
    "QueueOverview",
    "QueueSession",
    "QueueStats",
    "Rate",
    "Reactivated",
    "Reason",
    "RecurringMixin",
    "Released",
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
    "StepMixin",
    "Steps",
    "TaskBatch",
    "TaskGroup",
    "TaskLogFilter",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "Worker",
    "WorkerInfo",
    "WorkerMixin",
    "WorkerState",
    "abandoned",
    "advance",
    "batch",
    "batches",
    "cancel",
    "cancel_batch",
    "check",
    "claim",
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
    "event",
    "fail",
    "find",
    "graph",
    "heartbeat",
    "history",
    "in_error_group",
    "keys",
    "limits",
    "log_fields",
    "member_of",
    "open_event",
    "overview",
    "pause",
    "paused",
    "predecessors",
    "progress",
    "promote",
    "prune",
    "prune_batches",
    "prune_history",
    "release",
    "release_workers",
    "rerun",
    "reschedule",
    "rescue",
    "resume",
    "retry",
    "run_now",
    "seal",
    "set_concurrency",
    "set_limit",
    "set_rate",
    "snooze",
    "stats",
    "stats_by",
    "stop_workers",
    "timeline",
    "unschedule",
    "unserved",
    "utcnow",
    "verify_schema",
    "wait_for",
    "why",
    "workers",
]
if not TYPE_CHECKING and _find_spec("greenlet") is None:  # without it, "from sqlqueue import *" would fail
    __all__.remove("AsyncQueueSession")

_LATER = {
    "asyncio": "AsyncQueueSession",
    "diagnostics.check": "check verify_schema",
    "dialects": "utcnow",
    "kinds": (
        "ExpiryMixin FlowMixin JobMixin LimitMixin ProgressMixin RecurringMixin ResultMixin SlotMixin StageMixin"
        " StepMixin TopicMixin TraceMixin UniqueMixin"
    ),
    "lifecycle.kind": "Cause Holder Reason",
    "model.companions": "HistoryMixin LatchMixin PauseMixin WorkerMixin",
    "model.declaration": "QueueMixin",
    "session": "QueueSession",
    "transaction": "claim_of",
    "worker": (
        "AsyncSteps Cancel Discard JSONLogFormatter Retry Snooze Steps TaskLogFilter Worker current_job log_fields"
    ),
}
"""Where names are imported from on first use; all others of ``__all__`` are operations."""
_MODULES = {name: module for module, names in _LATER.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import on first use what many programs do not use, or what needs greenlet, which may not be installed."""
    if name not in __all__ and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(_import_module(f".{_MODULES.get(name, 'operations')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "alembic" in _sys.modules:
    from .diagnostics.drift import watch as _watch

    _watch()
