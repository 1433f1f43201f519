"""Calls handlers, keeps their leases alive meanwhile, and writes their outcomes.

Threads, coroutines and child processes in which handlers run belong here; claims do not.
"""
