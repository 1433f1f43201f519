"""What a session's transaction knows of queues: the claims made in it, the connection it runs on, and the notifications
that its commit sends.

It is undone with the transaction.
"""
