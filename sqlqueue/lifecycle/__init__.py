"""State transitions of rows: the assignments that all queues have in common, and the fence that protects them.

Rows are settled here; models are declared in :mod:`sqlqueue.model`.  What only some queues need is added by their
kinds: the interface is :class:`.Kind` in this package, its implementations are in :mod:`sqlqueue.kinds`.
"""
