"""Helpers for the tests of applications: run enqueued tasks immediately, and assert what is enqueued.

Handlers are called one after the other in the calling thread: no worker has to run, and an in-memory database is
enough.  With a session, everything happens in that session's transaction, which is not committed, so that a test can
roll it back.  With a ``sessionmaker``, each task runs in its own transaction, which is committed.

All functions also take an asyncio session, and are then awaited.

For packages with their own adapter, ``sqlqueue.testing.conformance`` tests the requirements for an engine.
"""

from .tools import AsyncQueue, Counts, Queue, assert_enqueued, drain, perform

__all__ = ["AsyncQueue", "Counts", "Queue", "assert_enqueued", "drain", "perform"]
