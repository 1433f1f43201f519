"""The worker: handlers for tasks, run by threads and coroutines, in any number of processes.

It claims and settles by the functions in :mod:`sqlqueue.operations`, as applications do.  Other packages of the library
import what they need from here, including names that are not public; a contract of import-linter forbids the modules.
"""

from .chunks import outcomes_in
from .context import WorkerContext
from .database import Sessions, growing_pauses, keep_running, passes
from .deadlines import CONNECT, UNREACHABLE, track, transaction_limit
from .executor import call_handler
from .fetcher import BaseFetcher
from .handlers import Handler, handler_of, is_coroutine
from .jobs import (
    COMPLETED,
    RELEASED,
    Cancel,
    Discard,
    Job,
    Outcome,
    OutcomeKind,
    Retry,
    Snooze,
    current_job,
    is_signal,
    outcome_of,
    plain_failure,
    write_outcomes,
    write_reports,
)
from .logs import JSONLogFormatter, LogFormat, TaskLogFilter, log_fields, log_to_stderr
from .reports import HAS_PROMETHEUS, TEXT, Health, Reports
from .run import ProcessLimits, handling_signals
from .steps import AsyncSteps, Steps, Turns
from .supervisor import supervise
from .threads import DaemonThreads, in_task
from .worker import Worker

__all__ = [
    "AsyncSteps",
    "Cancel",
    "Discard",
    "Health",
    "JSONLogFormatter",
    "Job",
    "Retry",
    "Snooze",
    "Steps",
    "TaskLogFilter",
    "Worker",
    "current_job",
    "log_fields",
]
