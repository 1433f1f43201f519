"""Whether a live database can carry the queues: its schema, its settings, its query plans and its rows.

Everything here reads and nothing writes.
"""
