"""For the tests of applications: do what is enqueued, here and now, and look at what is enqueued.

Handlers are called one after the other in the calling thread: no worker has to run, and a database in memory will do.
With a session all of it happens in that session's transaction, which is not committed, so that a test can roll back
everything.  With a ``sessionmaker`` each task has a transaction of its own, which is committed.

Everything here takes an asyncio session as well, and is then to be awaited.

For packages that bring an adapter of their own: ``sqlqueue.testing.conformance`` tests what an engine has to do.
"""

from .assertions import assert_enqueued
from .fixture import AsyncQueue, Queue
from .performing import Counts, drain, perform

__all__ = ["AsyncQueue", "Counts", "Queue", "assert_enqueued", "drain", "perform"]
