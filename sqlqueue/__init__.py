"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

import codecs as _codecs
import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers see of the names below
    from ._support.errors import ArgumentError as ArgumentError
    from ._support.errors import BatchClosedError as BatchClosedError
    from ._support.errors import Claim as Claim
    from ._support.errors import ClaimLostError as ClaimLostError
    from ._support.errors import ConfigurationError as ConfigurationError
    from ._support.errors import DuplicateTaskError as DuplicateTaskError
    from ._support.errors import HandlerNotFoundError as HandlerNotFoundError
    from ._support.errors import IllegalTransitionError as IllegalTransitionError
    from ._support.errors import ProcessDiedError as ProcessDiedError
    from ._support.errors import SchemaMismatchError as SchemaMismatchError
    from ._support.errors import SQLQueueError as SQLQueueError
    from ._support.errors import SQLQueueWarning as SQLQueueWarning
    from ._support.errors import UnsettledClaimError as UnsettledClaimError
    from ._support.errors import UnsupportedDialectError as UnsupportedDialectError
    from ._support.errors import UnsupportedIsolationError as UnsupportedIsolationError
    from .asyncio import AsyncQueueSession as AsyncQueueSession
    from .diagnostics.check import check as check
    from .diagnostics.check import verify_schema as verify_schema
    from .kinds import ExpiryMixin as ExpiryMixin
    from .kinds import FlowMixin as FlowMixin
    from .kinds import JobMixin as JobMixin
    from .kinds import LimitMixin as LimitMixin
    from .kinds import ProgressMixin as ProgressMixin
    from .kinds import RecurringMixin as RecurringMixin
    from .kinds import ResultMixin as ResultMixin
    from .kinds import SlotMixin as SlotMixin
    from .kinds import StageMixin as StageMixin
    from .kinds import StepMixin as StepMixin
    from .kinds import TopicMixin as TopicMixin
    from .kinds import TraceMixin as TraceMixin
    from .kinds import UniqueMixin as UniqueMixin
    from .lifecycle.kind import Cause as Cause
    from .lifecycle.kind import Holder as Holder
    from .lifecycle.kind import Reason as Reason
    from .model.companions import HistoryMixin as HistoryMixin
    from .model.companions import LatchMixin as LatchMixin
    from .model.companions import PauseMixin as PauseMixin
    from .model.companions import WorkerMixin as WorkerMixin
    from .model.declaration import QueueMixin as QueueMixin
    from .operations import BatchInfo as BatchInfo
    from .operations import BatchProgress as BatchProgress
    from .operations import Bucket as Bucket
    from .operations import Command as Command
    from .operations import DeclaredSchedules as DeclaredSchedules
    from .operations import Durations as Durations
    from .operations import ErrorGroup as ErrorGroup
    from .operations import Event as Event
    from .operations import Explanation as Explanation
    from .operations import FlowEdge as FlowEdge
    from .operations import FlowNode as FlowNode
    from .operations import Graph as Graph
    from .operations import HandlerInfo as HandlerInfo
    from .operations import KeyBlock as KeyBlock
    from .operations import KeyState as KeyState
    from .operations import Limit as Limit
    from .operations import PastAttempt as PastAttempt
    from .operations import Pause as Pause
    from .operations import Pruned as Pruned
    from .operations import QueueOverview as QueueOverview
    from .operations import QueueStats as QueueStats
    from .operations import Reactivated as Reactivated
    from .operations import Released as Released
    from .operations import TaskBatch as TaskBatch
    from .operations import TaskGroup as TaskGroup
    from .operations import WorkerInfo as WorkerInfo
    from .operations import WorkerState as WorkerState
    from .operations import abandoned as abandoned
    from .operations import advance as advance
    from .operations import batch as batch
    from .operations import batches as batches
    from .operations import cancel as cancel
    from .operations import cancel_batch as cancel_batch
    from .operations import claim as claim
    from .operations import claim_many as claim_many
    from .operations import claiming as claiming
    from .operations import complete as complete
    from .operations import consume as consume
    from .operations import consume_many as consume_many
    from .operations import declare_schedules as declare_schedules
    from .operations import discard as discard
    from .operations import drain_workers as drain_workers
    from .operations import enqueue as enqueue
    from .operations import errors as errors
    from .operations import event as event
    from .operations import fail as fail
    from .operations import find as find
    from .operations import graph as graph
    from .operations import heartbeat as heartbeat
    from .operations import history as history
    from .operations import in_error_group as in_error_group
    from .operations import keys as keys
    from .operations import limits as limits
    from .operations import member_of as member_of
    from .operations import open_event as open_event
    from .operations import overview as overview
    from .operations import pause as pause
    from .operations import paused as paused
    from .operations import predecessors as predecessors
    from .operations import progress as progress
    from .operations import promote as promote
    from .operations import prune as prune
    from .operations import prune_batches as prune_batches
    from .operations import prune_history as prune_history
    from .operations import release as release
    from .operations import release_workers as release_workers
    from .operations import rerun as rerun
    from .operations import reschedule as reschedule
    from .operations import rescue as rescue
    from .operations import resume as resume
    from .operations import retry as retry
    from .operations import run_now as run_now
    from .operations import seal as seal
    from .operations import set_concurrency as set_concurrency
    from .operations import set_limit as set_limit
    from .operations import set_rate as set_rate
    from .operations import snooze as snooze
    from .operations import stats as stats
    from .operations import stats_by as stats_by
    from .operations import stop_workers as stop_workers
    from .operations import timeline as timeline
    from .operations import unschedule as unschedule
    from .operations import unserved as unserved
    from .operations import wait_for as wait_for
    from .operations import why as why
    from .operations import workers as workers
    from .queue.options import AttemptOutcome as AttemptOutcome
    from .queue.options import HistoryOptions as HistoryOptions
    from .queue.options import LatchOptions as LatchOptions
    from .queue.options import QueueOptions as QueueOptions
    from .queue.options import Rate as Rate
    from .queue.options import Status as Status
    from .queue.retries import ConstantBackoff as ConstantBackoff
    from .queue.retries import ExponentialBackoff as ExponentialBackoff
    from .queue.retries import LinearBackoff as LinearBackoff
    from .queue.retries import RetryByError as RetryByError
    from .queue.retries import RetryPolicy as RetryPolicy
    from .queue.schedules import Cron as Cron
    from .queue.schedules import Every as Every
    from .queue.spec import Finding as Finding
    from .queue.spec import Severity as Severity
    from .session import QueueSession as QueueSession
    from .sql import utcnow as utcnow
    from .transaction import claim_of as claim_of
    from .worker import AsyncSteps as AsyncSteps
    from .worker import Cancel as Cancel
    from .worker import Discard as Discard
    from .worker import JSONLogFormatter as JSONLogFormatter
    from .worker import Retry as Retry
    from .worker import Snooze as Snooze
    from .worker import Steps as Steps
    from .worker import TaskLogFilter as TaskLogFilter
    from .worker import Worker as Worker
    from .worker import current_job as current_job
    from .worker import log_fields as log_fields

_NAMES = {
    "_support.errors": (
        "ArgumentError BatchClosedError Claim ClaimLostError ConfigurationError DuplicateTaskError"
        " HandlerNotFoundError IllegalTransitionError ProcessDiedError SQLQueueError SQLQueueWarning"
        " SchemaMismatchError UnsettledClaimError UnsupportedDialectError UnsupportedIsolationError"
    ),
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
    "operations": (
        "BatchInfo BatchProgress Bucket Command DeclaredSchedules Durations ErrorGroup Event Explanation FlowEdge"
        " FlowNode Graph HandlerInfo KeyBlock KeyState Limit PastAttempt Pause Pruned QueueOverview QueueStats"
        " Reactivated Released TaskBatch TaskGroup WorkerInfo WorkerState abandoned advance batch batches cancel"
        " cancel_batch claim claim_many claiming complete consume consume_many declare_schedules discard"
        " drain_workers enqueue errors event fail find graph heartbeat history in_error_group keys limits"
        " member_of open_event overview pause paused predecessors progress promote prune prune_batches"
        " prune_history release release_workers rerun reschedule rescue resume retry run_now seal set_concurrency"
        " set_limit set_rate snooze stats stats_by stop_workers timeline unschedule unserved wait_for why workers"
    ),
    "queue.options": "AttemptOutcome HistoryOptions LatchOptions QueueOptions Rate Status",
    "queue.retries": "ConstantBackoff ExponentialBackoff LinearBackoff RetryByError RetryPolicy",
    "queue.schedules": "Cron Every",
    "queue.spec": "Finding Severity",
    "session": "QueueSession",
    "transaction": "claim_of",
    "worker": (
        "AsyncSteps Cancel Discard JSONLogFormatter Retry Snooze Steps TaskLogFilter Worker current_job log_fields"
    ),
}
"""Where the public names are imported from on first use."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # otherwise, any name would have the type of this function's result
    __all__ = list(_MODULES)
    if _find_spec("greenlet") is None:  # without it, "from sqlqueue import *" would fail
        __all__.remove("AsyncQueueSession")

    def __getattr__(name: str) -> object:
        """Import on first use what many programs do not use, or what needs greenlet, which may not be installed."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


_codecs.lookup("utf-16-le")  # now, because a process without free file descriptors could not import it

if "alembic" in _sys.modules:
    from .diagnostics.drift import watch as _watch

    _watch()
