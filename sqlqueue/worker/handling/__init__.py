"""Handlers, their jobs, and the outcomes of jobs: plain values that execute nothing.

The other parts of a worker pass them to each other.
"""
