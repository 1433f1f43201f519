"""The worker: handlers for tasks, run by threads and coroutines, in any number of processes.

It claims and settles by the functions in :mod:`sqlqueue.operations`, as applications do.
"""

from .handling.jobs import Job, current_job
from .handling.signals import Cancel, Discard, Retry, Snooze
from .process.worker import Worker
from .reporting.health import Health

__all__ = ["Cancel", "Discard", "Health", "Job", "Retry", "Snooze", "Worker", "current_job"]
