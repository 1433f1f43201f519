"""A primary that dies, and a standby that takes its place; clients have one URL for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine, func, select

from sqlqueue import ClaimLostError, QueueSession, claim_of
from tests.clusters.conftest import Printed
from tests.clusters.crew import PATIENCE, Crew
from tests.clusters.standby import Pair
from tests.outages.models import Errand, Receipt
from tests.worker.crew import eventually

MANY = 300
RARELY = timedelta(minutes=5)
"""As `poll`: a worker that is not woken finds nothing within the test's patience."""


@pytest.fixture
def crew(pair: Pair) -> Iterator[Crew]:
    crew = Crew(pair.case, create_engine(pair.url, poolclass=NullPool))
    yield crew
    crew.close()


def hire(crew: Crew, pair: Pair) -> None:
    crew.hire(pair.url, "sync")
    crew.hire(pair.url, "async", is_async=True)
    crew.hire(pair.url, "woken", "woken", poll=RARELY)


def test_failover(crew: Crew, pair: Pair, printed: Printed) -> None:
    """Effects are exact on the new primary, whether or not it lacks the last commits; workers go on by themselves."""
    crew.enqueue(MANY)
    hire(crew, pair)
    crew.enqueue(1, "woken")
    eventually(lambda: sum(crew.receipts().values()) > MANY / 10, within=PATIENCE)
    if not pair.is_synchronous:
        pair.fall_behind()
    before = _receipts(crew)
    eventually(lambda: _receipts(crew) > before + MANY / 10, within=PATIENCE)
    accepting = pair.fail_over()
    crew.wait_until_done()
    crew.assert_exact()
    seconds = min(called for called in crew.called_at if called > accepting) - accepting
    again = sum(count > 1 for count in crew.calls.values())
    printed(f"{pair.name}: at work {seconds:.1f} s after the new primary accepted writes; {again} errands called twice")
    assert pair.is_synchronous or again >= MANY / 10  # the tail was lost, or this test shows nothing
    crew.enqueue(1, "woken")
    enqueued = time.monotonic()
    crew.wait_until_done()
    printed(f"{pair.name}: a worker that polls every 5 minutes was woken after {time.monotonic() - enqueued:.1f} s")
    crew.assert_exact()


def _receipts(crew: Crew) -> int:
    with crew.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Receipt)) or 0


def test_a_claim_of_the_lost_tail_settles_nothing(crew: Crew, pair: Pair) -> None:
    """The new primary gives the same attempt of the same task out again."""
    crew.enqueue(1)
    if not pair.is_synchronous:
        pair.fall_behind()
    with QueueSession(crew.engine) as session:
        before = claim_of(session.claim(Errand, lease=timedelta(seconds=2)))
        session.commit()
    pair.fail_over()
    with QueueSession(crew.engine, expire_on_commit=False) as session:

        def claimed() -> Errand | None:
            session.rollback()
            return session.claim(Errand)

        after = claim_of(eventually(claimed, within=PATIENCE))
        session.commit()
        assert (before.identity, before.attempt + pair.is_synchronous) == (after.identity, after.attempt)
        assert before != after
        for refused in (session.complete, session.heartbeat, session.release):
            with pytest.raises(ClaimLostError):
                refused(before)
            session.rollback()
        session.complete(after)
        session.commit()
    assert crew.undone() == 0
