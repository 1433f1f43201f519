"""Tests of an adapter's parts: the clock, error codes, and the findings about schema and server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import Engine, delete, insert, literal, select, update
from sqlalchemy.exc import DBAPIError

from ...diagnostics.check import check, verify_schema
from ...dialects.base import Adapter
from ...queue.spec import Severity
from ...sql.rows import utcnow
from .models import CHILDREN, JOBS, Base, Job
from .suite import QueueSessions, Suite, enqueue, numbered, stored

_MOMENT = datetime(2031, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC)
_MANY = timedelta(days=40, microseconds=1)


class TestEngine(Suite):
    """Facts about the engine that the adapter states: its clock, its errors and its schema."""

    def test_the_clock_is_in_utc(self, sessions: QueueSessions) -> None:
        with sessions() as session:
            now, later = session.execute(select(utcnow(), utcnow(timedelta(hours=1)))).one()
        assert abs(now - datetime.now(UTC)) < timedelta(minutes=15)
        assert timedelta(minutes=59) < later - now < timedelta(minutes=61)

    def test_the_default_of_a_moment_is_the_clock(self, sessions: QueueSessions) -> None:
        with sessions() as session:
            session.execute(insert(JOBS).values(name="of another program"))
            session.commit()
        (row,) = stored(sessions)
        assert row.status == "available"
        assert abs(row.created_at - datetime.now(UTC)) < timedelta(minutes=15)

    def test_a_time_keeps_its_microseconds(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"available_at": _MOMENT})
        assert [row.available_at for row in stored(sessions)] == [_MOMENT]

    def test_microseconds_are_exact(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, {"available_at": _MOMENT})
        moment = JOBS.c.available_at
        passed = adapter.types.microseconds(moment, literal(_MOMENT + _MANY, moment.type))
        with sessions() as session:
            assert session.scalar(select(passed)) == _MANY // timedelta(microseconds=1)

    def test_a_duplicate_is_recognized_by_its_code(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, {"unique_key": "k"})
        with sessions() as session, pytest.raises(DBAPIError) as raised:
            session.execute(insert(JOBS).values(unique_key="k", name=""))
        assert adapter.errors.is_duplicate(raised.value)
        assert not adapter.errors.is_referenced(raised.value)

    def test_a_foreign_key_violation_is_recognized_by_its_code(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, *numbered(1))
        with sessions() as session:
            session.execute(insert(CHILDREN).values(job_id=session.scalar(select(Job.id))))
            with pytest.raises(DBAPIError) as raised:
                session.execute(delete(JOBS))
        assert adapter.errors.is_referenced(raised.value)
        assert not adapter.errors.is_duplicate(raised.value)

    def test_a_conflict_victim_may_be_retried(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, *numbered(2))
        error = _one_writer_too_many(sessions) if adapter.locking.one_writer else _deadlock(sessions)
        assert adapter.errors.is_transient(error)
        assert not adapter.errors.is_duplicate(error)

    def test_a_programming_error_is_neither_transient_nor_an_outage(
        self, sessions: QueueSessions, adapter: Adapter
    ) -> None:
        with sessions() as session, pytest.raises(DBAPIError) as raised:
            session.connection().exec_driver_sql("SELECT nothing FROM no_such_table_of_sqlqueue")
        assert not adapter.errors.is_transient(raised.value)
        assert not adapter.errors.is_outage(raised.value)

    def test_a_statement_that_fails_leaves_the_transaction(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, {"name": "there", "unique_key": "k"})
        with sessions() as session:
            session.enqueue(Job, [{"name": "before"}])
            with pytest.raises(DBAPIError), adapter.transactions.tentative(session):
                session.execute(insert(JOBS).values(unique_key="k", name=""))
            session.enqueue(Job, [{"name": "after"}])
            session.commit()
        assert [row.name for row in stored(sessions)] == ["there", "before", "after"]

    def test_the_schema_is_as_it_was_declared(self, sessions: QueueSessions, conformance_engine: Engine) -> None:
        with conformance_engine.connect() as connection:
            verify_schema(connection, Base)
            assert [each for each in check(connection, Base) if each.severity is Severity.ERROR] == []


@contextmanager
def _writing(sessions: QueueSessions, name: str) -> Iterator[None]:
    with sessions() as session:
        session.execute(update(JOBS).where(Job.name == name).values(name=name))
        yield


def _one_writer_too_many(sessions: QueueSessions) -> DBAPIError:
    """Return the error of a claim that waits for the one writer for longer than the driver does."""
    with _writing(sessions, "0"), sessions() as second, pytest.raises(DBAPIError) as raised:
        second.claim(Job)
    return raised.value


def _deadlock(sessions: QueueSessions) -> DBAPIError:
    """Return the error of one of two transactions that wait for each other."""
    both = Barrier(2)

    def write(first: int, second: int) -> DBAPIError | None:
        ids = [row.id for row in stored(sessions)]
        with sessions() as session:
            session.execute(update(JOBS).where(Job.id == ids[first]).values(name="x"))
            both.wait(timeout=60)
            try:
                session.execute(update(JOBS).where(Job.id == ids[second]).values(name="y"))
            except DBAPIError as error:
                return error
            return None

    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(write, *order) for order in ((0, 1), (1, 0))]
        (error,) = [each for future in futures if (each := future.result()) is not None]
    return error
