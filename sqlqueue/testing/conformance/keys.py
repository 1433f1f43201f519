"""Tests of unique keys, conflicts, limits by key, and pruning."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from ..._support.errors import DuplicateTaskError
from .models import Child, Job, Visit
from .suite import QueueSessions, Suite, claim, enqueue, numbered, stored


class TestKeys(Suite):
    """Unique keys, conflicts, limits and foreign keys."""

    def test_one_unfinished_task_for_each_key(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "first", "unique_key": "k"}, {"name": "none"}, {"name": "none"})
        with sessions() as session:
            with pytest.raises(DuplicateTaskError):
                session.enqueue(Job, [{"name": "second", "unique_key": "k"}])
            session.rollback()
        assert [row.name for row in stored(sessions)] == ["first", "none", "none"]

    def test_keys_that_differ_in_any_character_are_distinct(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *({"unique_key": key} for key in ("k", "K", "ḱ", "ｋ")))
        assert len(stored(sessions)) == 4

    def test_a_key_is_free_once_its_task_is_final(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "first", "unique_key": "k"})
        (job,) = claim(sessions)
        with sessions() as session:
            session.complete(job)
            session.enqueue(Job, [{"name": "second", "unique_key": "k"}])
            session.commit()
        assert [row.status for row in stored(sessions)] == ["completed", "available"]

    def test_conflicts(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "first", "unique_key": "k"})
        rows = [{"name": "second", "unique_key": "k"}]
        with sessions() as session:
            session.enqueue(Job, rows, on_conflict="ignore")
            session.commit()
        assert [row.name for row in stored(sessions)] == ["first"]
        with sessions() as session:
            session.enqueue(Job, rows, on_conflict="replace")
            session.commit()
        assert [row.name for row in stored(sessions)] == ["second"]

    def test_limits_hold_for_each_key(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *({"limit_key": key} for key in "aaabbb"), model=Visit)
        with sessions() as session:
            visits = session.claim_many(Visit, limit=6)
            assert sorted(str(visit.limit_key) for visit in visits) == ["a", "a", "b", "b"]
            session.commit()
            assert session.claim(Visit) is None
            session.complete(visits[0])
            session.commit()
            assert session.claim(Visit) is not None
            session.commit()

    def test_a_limit_that_is_set(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *({"limit_key": "a"} for _ in range(4)), model=Visit)
        with sessions() as session:
            session.set_limit(Visit, "a", 3)
            session.commit()
            assert len(session.claim_many(Visit, limit=4)) == 3
            session.commit()

    def test_pruning_keeps_referenced_rows(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(3))
        with sessions() as session:
            first, *_ = session.consume_many(Job, limit=2)
            session.add(Child(job_id=first.id))
            session.commit()
            session.prune(Job, timedelta(0))
            session.commit()
            assert session.scalar(select(func.count()).select_from(Job)) == 2
        assert [row.status for row in stored(sessions)] == ["completed", "available"]
