"""The queue state of a session's transaction: the claims made in it, its connection, and the notifications that its
commit sends.

A rollback undoes this state.
"""
