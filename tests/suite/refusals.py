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
    """Without addresses, which differ from one process of the run to another."""
    return re.sub(r" at 0x\w+", "", ascii(value))[:60]


class Recorded(QueueSession):
    """Knows what it has sent."""

    sent: list[str]


@contextmanager
def refused(session: Recorded, *words: str, error: type[SQLQueueError] = ArgumentError) -> Iterator[None]:
    """Raises ``error`` with these words, and sends nothing but the beginning of a transaction."""
    session.sent.clear()
    with pytest.raises(error) as raised:
        yield
    for word in words:
        assert word in str(raised.value)
    assert [statement for statement in session.sent if not statement.startswith("BEGIN")] == []
