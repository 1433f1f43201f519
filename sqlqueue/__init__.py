"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from . import operations
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
from .diagnostics.check import check, verify_schema
from .diagnostics.drift import watch as _watch
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
from .operations import *  # noqa: F403  (exactly its __all__)
from .queue.options import AttemptOutcome, HistoryOptions, LatchOptions, QueueOptions, Rate, Status
from .queue.retries import ConstantBackoff, ExponentialBackoff, LinearBackoff, RetryByError, RetryPolicy
from .queue.schedules import Cron, Every
from .queue.spec import Finding, Severity
from .session import QueueSession
from .sql import utcnow
from .transaction import claim_of

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession
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
    "Cancel",
    "Cause",
    "Claim",
    "ClaimLostError",
    "ConfigurationError",
    "ConstantBackoff",
    "Cron",
    "Discard",
    "DuplicateTaskError",
    "Every",
    "ExpiryMixin",
    "ExponentialBackoff",
    "Finding",
    "FlowMixin",
    "HandlerNotFoundError",
    "HistoryMixin",
    "HistoryOptions",
    "Holder",
    "IllegalTransitionError",
    "JSONLogFormatter",
    "JobMixin",
    "LatchMixin",
    "LatchOptions",
    "LimitMixin",
    "LinearBackoff",
    "PauseMixin",
    "ProcessDiedError",
    "ProgressMixin",
    "QueueMixin",
    "QueueOptions",
    "QueueSession",
    "Rate",
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
    "StepMixin",
    "Steps",
    "TaskLogFilter",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "Worker",
    "WorkerMixin",
    "check",
    "claim_of",
    "current_job",
    "log_fields",
    "utcnow",
    "verify_schema",
]
__all__ += operations.__all__
if not TYPE_CHECKING and _find_spec("greenlet") is None:  # without it, "from sqlqueue import *" would fail
    __all__.remove("AsyncQueueSession")


def __getattr__(name: str) -> object:
    """Import on first use what needs greenlet, which may not be installed, and what only worker processes need."""
    if name == "AsyncQueueSession":
        module = _import_module(".asyncio", __name__)
    elif name in __all__:
        module = _import_module(".worker", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_watch()
