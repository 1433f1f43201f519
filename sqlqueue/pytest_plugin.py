"""The fixture ``queue`` for the tests of applications, and readable failures of the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest

from ._support.errors import ConfigurationError
from .testing.tools import AsyncQueue, Queue

pytest.register_assert_rewrite("sqlqueue.testing.conformance")


@pytest.fixture
def queue_worker() -> Any:
    """The application's :class:`.Worker`; applications override this fixture."""
    raise ConfigurationError("define a fixture queue_worker that returns your sqlqueue.Worker")


@pytest.fixture
def queue_session() -> Any:
    """The session of a test, sync or async; applications override this fixture."""
    raise ConfigurationError("define a fixture queue_session that returns the session of a test")


@pytest.fixture
def queue(queue_worker: Any, queue_session: Any) -> Queue[Any] | AsyncQueue[Any]:
    """The functions of :mod:`sqlqueue.testing`, bound to the worker and the session of the test.

    A :class:`.Queue`, or an :class:`.AsyncQueue` if the session is an asyncio one.
    """
    return (AsyncQueue if hasattr(queue_session, "run_sync") else Queue)(queue_worker, queue_session)
