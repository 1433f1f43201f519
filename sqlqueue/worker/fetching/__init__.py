"""Finds out when there is work, and claims as much of it as can be run.

One fetcher for each handler; they pass jobs on to :mod:`sqlqueue.worker.running`.
"""
