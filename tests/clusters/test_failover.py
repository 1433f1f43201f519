"""A primary dies and a standby takes its place; clients have one URL for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import NullPool, create_engine, func, select

from sqlqueue import ClaimLostError, QueueSession, claim_of
from tests.clusters.conftest import Printed
from tests.clusters.standby import Pair
from tests.clusters.workers import PATIENCE, ClusterWorkers
from tests.outages.models import Errand, Receipt
from tests.support.workers import eventually

MANY = 300
RARELY = timedelta(minutes=5)
"""A `poll` so long that a worker that is not notified finds nothing within the test's time limit."""


@pytest.fixture
def workers(pair: Pair) -> Iterator[ClusterWorkers]:
    workers = ClusterWorkers(pair.case, create_engine(pair.url, poolclass=NullPool))
    yield workers
    workers.close()


def start(workers: ClusterWorkers, pair: Pair) -> None:
    workers.start(pair.url, "sync")
    workers.start(pair.url, "async", is_async=True)
    workers.start(pair.url, "woken", "woken", poll=RARELY)


def test_effects_are_exact_after_a_failover(workers: ClusterWorkers, pair: Pair, printed: Printed) -> None:
    """Effects are exact on the new primary, whether or not it lacks the last commits; workers resume by themselves."""
    workers.enqueue(MANY)
    start(workers, pair)
    workers.enqueue(1, "woken")
    eventually(lambda: sum(workers.receipts().values()) > MANY / 10, within=PATIENCE)
    if not pair.is_synchronous:
        pair.fall_behind()
    before = _receipts(workers)
    eventually(lambda: _receipts(workers) > before + MANY / 10, within=PATIENCE)
    accepting = pair.fail_over()
    workers.wait_until_done()
    workers.assert_exact()
    seconds = min(called for called in workers.called_at if called > accepting) - accepting
    again = sum(count > 1 for count in workers.calls.values())
    printed(f"{pair.name}: at work {seconds:.1f} s after the new primary accepted writes; {again} errands called twice")
    assert pair.is_synchronous or again >= MANY / 10  # commits were lost; otherwise this test shows nothing
    workers.enqueue(1, "woken")
    enqueued = time.monotonic()
    workers.wait_until_done()
    printed(f"{pair.name}: a worker that polls every 5 minutes was woken after {time.monotonic() - enqueued:.1f} s")
    workers.assert_exact()


def _receipts(workers: ClusterWorkers) -> int:
    with workers.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Receipt)) or 0


def test_a_claim_of_the_lost_tail_settles_nothing(workers: ClusterWorkers, pair: Pair) -> None:
    """The new primary assigns the same attempt number of the same task again."""
    workers.enqueue(1)
    if not pair.is_synchronous:
        pair.fall_behind()
    with QueueSession(workers.engine) as session:
        before = claim_of(session.claim(Errand, lease=timedelta(seconds=2)))
        session.commit()
    pair.fail_over()
    with QueueSession(workers.engine, expire_on_commit=False) as session:

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
    assert workers.undone() == 0
