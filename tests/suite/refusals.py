"""Sessions that record what they send, and the check that a call sends nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from sqlqueue import ArgumentError, QueueSession, SQLQueueError

NAIVE = datetime(2020, 1, 1)


def ascii_id(value: object) -> str:
    """Return test ids without memory addresses, which differ between the processes of a run."""
    return re.sub(r" at 0x\w+", "", ascii(value))[:60]


class Recorded(QueueSession):
    """A session that records its statements."""

    sent: list[str]


@contextmanager
def refused(session: Recorded, *words: str, error: type[SQLQueueError] = ArgumentError) -> Iterator[None]:
    """Assert that ``error`` is raised with this text, and that only the start of a transaction is sent."""
    session.sent.clear()
    with pytest.raises(error) as raised:
        yield
    for word in words:
        assert word in str(raised.value)
    assert [statement for statement in session.sent if not statement.startswith("BEGIN")] == []
