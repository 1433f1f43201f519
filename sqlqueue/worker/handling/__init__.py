"""Handlers, their jobs, and the outcomes of jobs: plain values that execute nothing."""
