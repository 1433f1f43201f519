"""The conformance suite: tests that a package with an adapter imports and runs.

>>> from sqlqueue.testing.conformance import *
>>>
>>> @pytest.fixture
... def conformance_engine():
...     engine = create_engine("...")
...     yield engine
...     engine.dispose()

The engine must connect to an empty database, with foreign keys enforced and at least five connections; the tests create
their tables in it and drop them. They query the adapter's capabilities, never its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Engine, ForeignKey, Identity, Integer, String, delete, func, insert, literal, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from .._support.errors import ClaimLostError, DuplicateTaskError
from ..diagnostics.check import check, verify_schema
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..kinds.columns import UniqueMixin
from ..kinds.limits import LimitMixin, SlotMixin
from ..model.declaration import QueueMixin
from ..queue.options import QueueOptions
from ..queue.retries import ConstantBackoff
from ..queue.spec import Severity
from ..session import QueueSession
from ..sql import utcnow

__all__ = ["TestClaims", "TestEngine", "TestKeys", "TestSettling"]

# -- the queues of the suite ------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    """The declarative base of the suite's models."""


class Job(UniqueMixin, Base):
    """A task with two attempts, the second without a delay."""

    __tablename__ = "conformance_job"
    __queue__ = QueueOptions(max_attempts=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), default="")


class Child(Base):
    """A row that refers to a job and keeps it from being pruned."""

    __tablename__ = "conformance_child"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("conformance_job.id"))


class Seat(QueueMixin, Base):
    """A task with a primary key of two columns."""

    __tablename__ = "conformance_seat"

    line: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Slot(SlotMixin, Base):
    """A slot of the suite's limited queue."""

    __tablename__ = "conformance_slot"


class Visit(LimitMixin, Base):
    """A task of which two run at a time for each key."""

    __tablename__ = "conformance_visit"
    __queue__ = QueueOptions(slots=Slot, limit=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


JOBS, CHILDREN = (Base.metadata.tables[model.__tablename__] for model in (Job, Child))


# -- the sessions of each test, and what tests have in common ---------------------------------------------------------

QueueSessions: TypeAlias = sessionmaker[QueueSession]
PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Suite:
    """The base class of the tests: creates the tables and sessions of each test."""

    @pytest.fixture
    def sessions(self, conformance_engine: Engine) -> Iterator[QueueSessions]:
        """Yield a sessionmaker; the tables are created before the test and dropped after it."""
        Base.metadata.create_all(conformance_engine)
        yield sessionmaker(conformance_engine, class_=QueueSession)
        Base.metadata.drop_all(conformance_engine)

    @pytest.fixture
    def adapter(self, conformance_engine: Engine, sessions: QueueSessions) -> Adapter:
        """Return the adapter of the tested engine."""
        return adapter_for(conformance_engine.dialect)


def enqueue(sessions: QueueSessions, *rows: Mapping[str, Any], model: type[QueueMixin] = Job) -> None:
    """Enqueue ``rows`` in a separate transaction."""
    with sessions.begin() as session:
        session.enqueue(model, rows)


def numbered(count: int) -> list[Mapping[str, Any]]:
    """Return ``count`` rows whose names are their numbers, from 0."""
    return [{"name": str(number)} for number in range(count)]


def claim(sessions: QueueSessions, limit: int = 1) -> list[Job]:
    """Claim in a separate transaction."""
    with sessions(expire_on_commit=False) as session:
        jobs = list(session.claim_many(Job, limit=limit))
        session.commit()
        return jobs


def claimed(sessions: QueueSessions) -> Job:
    """Enqueue a job and claim it."""
    enqueue(sessions, *numbered(1))
    (job,) = claim(sessions)
    return job


def end_leases(sessions: QueueSessions) -> None:
    """Make the lease of every running job expire."""
    with sessions.begin() as session:
        session.execute(update(JOBS).where(Job.status == "running").values(available_at=PAST))


def stored(sessions: QueueSessions) -> list[Job]:
    """Return all jobs as stored, in the order of their keys."""
    with sessions() as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


# -- claims -----------------------------------------------------------------------------------------------------------

_CLAIMERS = 4
_JOBS = 40


class TestClaims(Suite):
    """Claims: their order, their locks, their leases and their rollback."""

    def test_a_claim_is_stored_in_the_row(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "it"})
        with sessions.begin() as session:
            job = session.claim(Job, claimed_by="me")
            assert job is not None
        (row,) = stored(sessions)
        assert (row.name, row.status, row.attempt, row.claimed_by) == ("it", "running", 1, "me")
        assert row.claimed_at is not None
        assert row.available_at > row.claimed_at

    def test_nothing_is_claimed_twice(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        assert len(claim(sessions)) == 1
        assert claim(sessions) == []

    def test_locked_tasks_are_passed_over(self, sessions: QueueSessions, adapter: Adapter) -> None:
        if adapter.connections.one_writer:
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
                    if not adapter.connections.is_transient(error):
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
        with sessions.begin() as session:
            session.execute(update(JOBS).values(status="available"))
        assert [job.name for job in claim(sessions, 4)] == ["first", "second", "third", "last"]

    def test_nothing_is_claimed_before_its_moment(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "tomorrow", "available_at": datetime.now(UTC) + timedelta(days=1)})
        assert claim(sessions) == []
        with sessions.begin() as session:
            session.execute(update(JOBS).values(available_at=PAST))
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
        with sessions.begin() as session:
            job = session.claim(Job, lease=None)
            assert job is not None
            assert job.status == "available"
            session.complete(job)
        assert [row.status for row in stored(sessions)] == ["completed"]

    def test_consumed_tasks_are_completed(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(2))
        with sessions.begin() as session:
            assert len(session.consume_many(Job, limit=5)) == 2
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


# -- settlements: each is written once, and only while the claim holds its task ---------------------------------------

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
        job = claimed(sessions)
        with sessions.begin() as session:
            end(session, job)
        assert [row.status for row in stored(sessions)] == [status]

    @_every_end
    def test_a_lost_claim_settles_nothing(self, sessions: QueueSessions, how: str) -> None:
        end, _ = _ENDS[how]
        job = claimed(sessions)
        end_leases(sessions)
        (theirs,) = claim(sessions)
        with sessions() as session:
            with pytest.raises(ClaimLostError):
                end(session, job)
            session.rollback()
        (row,) = stored(sessions)
        assert (row.status, row.attempt, row.available_at) == ("running", 2, theirs.available_at)

    def test_a_rollback_undoes_a_completion(self, sessions: QueueSessions) -> None:
        job = claimed(sessions)
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
            with sessions.begin() as session:
                session.fail(job, error)
            (row,) = stored(sessions)
            assert (row.status, row.error) == (status, error)
        assert claim(sessions) == []

    def test_a_heartbeat_renews_the_lease(self, sessions: QueueSessions) -> None:
        job = claimed(sessions)
        before = job.available_at
        with sessions.begin() as session:
            session.heartbeat(job, _HOUR)
        (row,) = stored(sessions)
        assert row.available_at > before + _HOUR / 2

    def test_a_crash_at_the_last_attempt_is_found(self, sessions: QueueSessions) -> None:
        enqueue(sessions, *numbered(1))
        for _ in range(2):
            claim(sessions)
            end_leases(sessions)
        assert claim(sessions) == []
        with sessions.begin() as session:
            assert session.rescue(Job) == 1
        assert [row.status for row in stored(sessions)] == ["discarded"]


# -- unique keys, conflicts, limits by key, and pruning ---------------------------------------------------------------


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
        with sessions.begin() as session:
            session.complete(job)
            session.enqueue(Job, [{"name": "second", "unique_key": "k"}])
        assert [row.status for row in stored(sessions)] == ["completed", "available"]

    def test_conflicts(self, sessions: QueueSessions) -> None:
        enqueue(sessions, {"name": "first", "unique_key": "k"})
        rows = [{"name": "second", "unique_key": "k"}]
        with sessions.begin() as session:
            session.enqueue(Job, rows, on_conflict="ignore")
        assert [row.name for row in stored(sessions)] == ["first"]
        with sessions.begin() as session:
            session.enqueue(Job, rows, on_conflict="replace")
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


# -- the adapter's parts: the clock, error codes, and the findings about schema and server ----------------------------

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
        with sessions.begin() as session:
            session.execute(insert(JOBS).values(name="of another program"))
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
        assert adapter.connections.is_duplicate(raised.value)
        assert not adapter.connections.is_referenced(raised.value)

    def test_a_foreign_key_violation_is_recognized_by_its_code(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, *numbered(1))
        with sessions() as session:
            session.execute(insert(CHILDREN).values(job_id=session.scalar(select(Job.id))))
            with pytest.raises(DBAPIError) as raised:
                session.execute(delete(JOBS))
        assert adapter.connections.is_referenced(raised.value)
        assert not adapter.connections.is_duplicate(raised.value)

    def test_a_conflict_victim_may_be_retried(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, *numbered(2))
        error = _one_writer_too_many(sessions) if adapter.connections.one_writer else _deadlock(sessions)
        assert adapter.connections.is_transient(error)
        assert not adapter.connections.is_duplicate(error)

    def test_a_programming_error_is_neither_transient_nor_an_outage(
        self, sessions: QueueSessions, adapter: Adapter
    ) -> None:
        with sessions() as session, pytest.raises(DBAPIError) as raised:
            session.connection().exec_driver_sql("SELECT nothing FROM no_such_table_of_sqlqueue")
        assert not adapter.connections.is_transient(raised.value)
        assert not adapter.connections.is_outage(raised.value)

    def test_a_statement_that_fails_leaves_the_transaction(self, sessions: QueueSessions, adapter: Adapter) -> None:
        enqueue(sessions, {"name": "there", "unique_key": "k"})
        with sessions.begin() as session:
            session.enqueue(Job, [{"name": "before"}])
            with pytest.raises(DBAPIError), adapter.connections.tentative(session):
                session.execute(insert(JOBS).values(unique_key="k", name=""))
            session.enqueue(Job, [{"name": "after"}])
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
