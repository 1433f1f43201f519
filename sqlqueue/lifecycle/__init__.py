"""State transitions of rows: the assignments that all queues have in common, and the fence that protects them.

Rows are settled here; models are declared in :mod:`sqlqueue.model`.  Kinds add what only some queues need: their
interface is :class:`.Kind` in this package, and they are implemented in :mod:`sqlqueue.kinds`.
"""
