"""The worker: handlers for tasks, run by threads and coroutines, in any number of processes."""

from .handling.jobs import Job, current_job
from .handling.signals import Cancel, Discard, Retry, Snooze
from .process.worker import Worker

__all__ = ["Cancel", "Discard", "Job", "Retry", "Snooze", "Worker", "current_job"]
