"""The worker: handlers for tasks, run by threads and coroutines, in any number of processes.

It claims and settles by the functions in :mod:`sqlqueue.operations`, as applications do.
"""

from .jobs import Cancel, Discard, Job, Retry, Snooze, current_job
from .reports import Health
from .worker import Worker

__all__ = ["Cancel", "Discard", "Health", "Job", "Retry", "Snooze", "Worker", "current_job"]
