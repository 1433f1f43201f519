"""Handlers, their jobs, and the outcomes of jobs: values that run nothing."""
