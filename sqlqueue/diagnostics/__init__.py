"""Checks whether a live database can run the queues: its schema, settings, query plans and rows.

All checks are read-only.
"""
