"""Handlers, the jobs that they are called for, and what becomes of a job.  Values, which run nothing."""
