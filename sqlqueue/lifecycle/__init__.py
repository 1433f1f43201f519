"""What becomes of a row from claim to claim: the assignments that every queue has in common, and the fence around them.

What only some queues have is told by their kinds, see :class:`.Kind`.
"""
