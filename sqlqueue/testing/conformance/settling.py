"""Tests of settlements: each is written once, and only while the claim holds its task."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from ..._support.errors import ClaimLostError
from ...session import QueueSession
from .models import Job
from .suite import QueueSessions, Suite, claim, end_leases, enqueue, numbered, stored

_HOUR = timedelta(hours=1)
_ENDS: dict[str, tuple[Callable[[QueueSession, Job], object], str]] = {
    "complete": (lambda session, job: session.complete(job), "completed"),
    "fail": (lambda session, job: session.fail(job, "no"), "retryable"),
    "discard": (lambda session, job: session.discard(job, error="no"), "discarded"),
    "cancel": (lambda session, job: session.cancel(job), "cancelled"),
    "release": (lambda session, job: session.release(job), "available"),
    "snooze": (lambda session, job: session.snooze(job, _HOUR), "scheduled"),
}
_every_end = pytest.mark.parametrize("how", _ENDS)


class TestSettling(Suite):
    """Settlements: the states that follow, fencing, leases and retries."""

    @_every_end
    def test_the_state_that_follows(self, sessions: QueueSessions, how: str) -> None:
        end, status = _ENDS[how]
        enqueue(sessions, *numbered(1))
        (job,) = claim(sessions)
        with sessions() as session:
            end(session, job)
            session.commit()
        assert [row.status for row in stored(sessions)] == [status]

    @_every_end
    def test_a_lost_claim_settles_nothing(self, sessions: QueueSessions, how: str) -> None:
        end, _ = _ENDS[how]
        enqueue(sessions, *numbered(1))
        (job,) = claim(sessions)
        end_leases(sessions)
        (theirs,) = claim(sessions)
        with sessions() as session:
            with pytest.raises(ClaimLostError):
                end(session, job)
            session.rollback()
        (row,) = stored(sessions)
        assert (row.status, row.attempt, row.available_at) == ("running", 2, theirs.available_at)

    def test_a_rollback_undoes_a_completion(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        (job,) = claim(sessions)
        with sessions() as session:
            session.complete(job)
            session.rollback()
        assert [row.status for row in stored(sessions)] == ["running"]

    def test_many_are_settled_at_once(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(20))
        jobs = [*claim(sessions, 10), *claim(sessions, 10)]
        with sessions() as session:
            session.complete(jobs)
            session.commit()
            assert session.stats(Job)["completed"] == 20

    def test_one_lost_claim_among_several_settles_nothing(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        claimed = claim(sessions)
        end_leases(sessions)
        enqueue(sessions, {"name": "other"})
        jobs = [*claimed, *claim(sessions, 2)]
        with sessions() as session:
            with pytest.raises(ClaimLostError):
                session.complete(jobs)
            session.rollback()
        assert [row.status for row in stored(sessions)] == ["running", "running"]

    def test_a_failure_is_retried_until_attempts_run_out(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        error = "naïve 失敗 🙈"
        for attempt, status in ((1, "retryable"), (2, "discarded")):
            (job,) = claim(sessions)
            assert job.attempt == attempt
            with sessions() as session:
                session.fail(job, error)
                session.commit()
            (row,) = stored(sessions)
            assert (row.status, row.error) == (status, error)
        assert claim(sessions) == []

    def test_a_heartbeat_renews_the_lease(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        (job,) = claim(sessions)
        before = job.available_at
        with sessions() as session:
            session.heartbeat(job, _HOUR)
            session.commit()
        (row,) = stored(sessions)
        assert row.available_at > before + _HOUR / 2

    def test_a_crash_at_the_last_attempt_is_found(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        for _ in range(2):
            claim(sessions)
            end_leases(sessions)
        assert claim(sessions) == []
        with sessions() as session:
            assert session.rescue(Job) == 1
            session.commit()
        assert [row.status for row in stored(sessions)] == ["discarded"]
