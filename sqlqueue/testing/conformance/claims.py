"""Tests of claims: their order, locks and leases, and that each task goes to one claimer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from ...dialects.base import Adapter
from .models import JOBS, Job, Seat
from .suite import PAST, QueueSessions, Suite, claim, end_leases, enqueue, numbered, stored

_CLAIMERS = 4
_JOBS = 40


class TestClaims(Suite):
    """Claims: their order, their locks, their leases and their rollback."""

    def test_a_claim_is_stored_in_the_row(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "it"})
        with sessions() as session:
            job = session.claim(Job, claimed_by="me")
            assert job is not None
            session.commit()
        (row,) = stored(sessions)
        assert (row.name, row.status, row.attempt, row.claimed_by) == ("it", "running", 1, "me")
        assert row.claimed_at is not None
        assert row.available_at > row.claimed_at

    def test_nothing_is_claimed_twice(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        assert len(claim(sessions)) == 1
        assert claim(sessions) == []

    def test_locked_tasks_are_passed_over(self, sessions: QueueSessions, adapter: Adapter) -> None:
        if adapter.locking.one_writer:
            pytest.skip("the engine has one writer at a time, so nothing is locked by others")
        enqueue(sessions, *numbered(5))
        with sessions() as first, sessions() as second:
            mine = {job.name for job in first.claim_many(Job, limit=2)}
            theirs = {job.name for job in second.claim_many(Job, limit=5)}
        assert mine == {"0", "1"}
        assert theirs == {"2", "3", "4"}

    def test_each_task_goes_to_one_of_many_claimers(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, *numbered(_JOBS))

        def claim_all() -> list[str]:
            names: list[str] = []
            while True:
                try:
                    jobs = claim(sessions, limit=3)
                except DBAPIError as error:
                    if not adapter.errors.is_transient(error):
                        raise
                    continue
                names += [job.name for job in jobs]
                if len(names) == _JOBS or not (jobs or any(job.status == "available" for job in stored(sessions))):
                    return names

        with ThreadPoolExecutor(_CLAIMERS) as threads:
            futures = [threads.submit(claim_all) for _ in range(_CLAIMERS)]
            claimed = [name for future in futures for name in future.result()]
        assert sorted(claimed) == sorted(job["name"] for job in numbered(_JOBS))

    def test_the_order(self, sessions: QueueSessions) -> None:
        soon, later = PAST, PAST + timedelta(microseconds=1)
        enqueue(
            sessions,
            {"name": "last", "priority": 1, "available_at": soon},
            {"name": "second", "priority": 0, "available_at": later},
            {"name": "third", "priority": 0, "available_at": later},
            {"name": "first", "priority": 0, "available_at": soon},
        )
        with sessions() as session:
            session.execute(update(JOBS).values(status="available"))
            session.commit()
        assert [job.name for job in claim(sessions, 4)] == ["first", "second", "third", "last"]

    def test_nothing_is_claimed_before_its_moment(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "tomorrow", "available_at": datetime.now(UTC) + timedelta(days=1)})
        assert claim(sessions) == []
        with sessions() as session:
            session.execute(update(JOBS).values(available_at=PAST))
            session.commit()
        assert [job.name for job in claim(sessions)] == ["tomorrow"]

    def test_an_expired_lease_allows_the_next_claim(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        claim(sessions)
        end_leases(sessions)
        (job,) = claim(sessions)
        assert job.attempt == 2

    def test_criteria_and_limit(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(5))
        with sessions() as session:
            jobs = session.claim_many(Job, Job.name > "1", limit=2)
            assert [job.name for job in jobs] == ["2", "3"]
            session.rollback()

    def test_a_rollback_undoes_a_claim(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        with sessions() as session:
            assert session.claim(Job) is not None
            session.rollback()
        (row,) = stored(sessions)
        assert (row.status, row.attempt) == ("available", 0)
        assert len(claim(sessions)) == 1

    def test_a_claim_without_a_lease_writes_nothing(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        with sessions() as session:
            job = session.claim(Job, lease=None)
            assert job is not None
            assert job.status == "available"
            session.complete(job)
            session.commit()
        assert [row.status for row in stored(sessions)] == ["completed"]

    def test_consumed_tasks_are_completed(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(2))
        with sessions() as session:
            assert len(session.consume_many(Job, limit=5)) == 2
            session.commit()
        assert [row.status for row in stored(sessions)] == ["completed", "completed"]

    def test_keys_of_two_columns(self, sessions: QueueSessions) -> None:
        seats = [{"line": line, "number": number} for line in "ab" for number in range(3)]
        enqueue(sessions, *seats, model=Seat)
        with sessions() as session:
            taken = session.claim_many(Seat, limit=6)
            assert sorted((seat.line, seat.number) for seat in taken) == [(s["line"], s["number"]) for s in seats]
            session.complete(taken)
            session.commit()
            assert session.stats(Seat)["completed"] == 6
