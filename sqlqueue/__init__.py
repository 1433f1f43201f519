"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

from typing import TYPE_CHECKING

from .backoff import ExponentialBackoff, RetryPolicy
from .claims import Claim, claim_of
from .exc import (
    ArgumentError,
    ClaimLostError,
    ConfigurationError,
    DuplicateTaskError,
    HandlerNotFoundError,
    IllegalTransitionError,
    SchemaMismatchError,
    SQLQueueError,
    SQLQueueWarning,
    UnsettledClaimError,
    UnsupportedDialectError,
    UnsupportedIsolationError,
)
from .mixins import QueueMixin, TopicMixin
from .operations import (
    ErrorGroup,
    QueueStats,
    cancel,
    claim,
    claim_many,
    claiming,
    complete,
    consume,
    consume_many,
    discard,
    enqueue,
    errors,
    fail,
    heartbeat,
    prune,
    release,
    rescue,
    retry,
    snooze,
    stats,
)
from .options import QueueOptions
from .session import QueueSession
from .states import Status

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession

__all__ = [
    "ArgumentError",
    "AsyncQueueSession",
    "Claim",
    "ClaimLostError",
    "ConfigurationError",
    "DuplicateTaskError",
    "ErrorGroup",
    "ExponentialBackoff",
    "HandlerNotFoundError",
    "IllegalTransitionError",
    "QueueMixin",
    "QueueOptions",
    "QueueSession",
    "QueueStats",
    "RetryPolicy",
    "SQLQueueError",
    "SQLQueueWarning",
    "SchemaMismatchError",
    "Status",
    "TopicMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "cancel",
    "claim",
    "claim_many",
    "claim_of",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "discard",
    "enqueue",
    "errors",
    "fail",
    "heartbeat",
    "prune",
    "release",
    "rescue",
    "retry",
    "snooze",
    "stats",
]


def __getattr__(name: str) -> object:
    """SQLAlchemy's asyncio extension needs greenlet, which is not installed for those who do without."""
    if name == "AsyncQueueSession":
        from .asyncio import AsyncQueueSession  # noqa: PLC0415

        return AsyncQueueSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
