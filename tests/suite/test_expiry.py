"""Tasks that are not started in time are cancelled by the claim that finds them, and never run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from sqlqueue import (
    ArgumentError,
    Cause,
    ConfigurationError,
    ExpiryMixin,
    HistoryMixin,
    JobMixin,
    LimitMixin,
    QueueOptions,
    QueueSession,
    RecurringMixin,
    SlotMixin,
    Worker,
    utcnow,
)
from sqlqueue.outbox import OutboxMixin
from sqlqueue.testing import drain
from tests.support.harness import Database
from tests.support.models import Push, Task
from tests.support.rows import FUTURE, PAST, load_all, rows
from tests.support.workers import seen

CLAIMABLE = ("ready", "scheduled", "retryable", "expired")
MINUTE = timedelta(minutes=1)


def statuses(db: Database) -> list[tuple[str, str | None]]:
    return [(push.status, push.error) for push in load_all(db, Push)]


@pytest.mark.parametrize("how", ["lease", "lock", "consume"])
def test_a_claim_cancels_what_has_expired_whatever_its_state(db: Database, how: str) -> None:
    given = [*rows(4, *CLAIMABLE, expires_at=PAST), *rows(4, *CLAIMABLE, expires_at=FUTURE), *rows(1, expires_at=None)]
    db.insert(Push, [{"id": number, **row} for number, row in enumerate(given, 1)])
    db.execute(update(Push).where(Push.id == 1).values(unique_key="a"))
    with db.begin() as session:
        if how == "consume":
            taken = session.consume_many(Push, limit=7)
        else:
            taken = session.claim_many(Push, limit=7, lease=None if how == "lock" else "default")
            session.complete(taken)
        assert sorted(push.id for push in taken) == [5, 6, 7, 8, 9]
    found = load_all(db, Push)
    assert [(push.status, push.error) for push in found[:4]] == [("cancelled", "expired")] * 4
    assert [push.status for push in found[4:]] == ["completed"] * 5
    assert (found[0].unique_key, found[0].former_key) == (None, "a")
    assert all(push.finished_at for push in found)


@pytest.mark.sync_only
def test_expired_tasks_do_not_keep_a_claim_from_the_others(db: Database) -> None:
    db.insert(Push, [*rows(1_200, expires_at=PAST), *rows(12, expires_at=FUTURE)])
    taken: list[Any] = []
    with seen(db, "before_cursor_execute") as sent:
        while len(taken) < 10:  # after a second, a claim returns with less
            with db.begin() as session:
                taken += session.claim_many(Push, Push.topic == "default", limit=10 - len(taken))
    assert len(sent) < 50
    assert db.committed.stats(Push).counts["cancelled"] == 1_200


@pytest.mark.sync_only
def test_a_running_attempt_is_not_interrupted(db: Database) -> None:
    db.committed.enqueue(Push(), expires=MINUTE)
    push = db.committed.claim(Push)
    db.execute(update(Push).values(expires_at=utcnow(-MINUTE)))
    assert db.committed.claim(Push) is None
    with db.begin() as session:
        session.heartbeat(push)
        session.complete(push)
    assert statuses(db) == [("completed", None)]


def test_the_time_counts_from_the_insertion_by_the_clock_of_the_database(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Push(unique_key="a"), expires=MINUTE, delay=timedelta(seconds=30))
        session.enqueue(Push, [{"unique_key": "b"}, {"unique_key": "c"}], expires=MINUTE)
        session.enqueue(Push, [{"unique_key": "d"}], expires=MINUTE, on_conflict="replace")
    first, *rest = load_all(db, Push)
    assert first.expires_at - first.available_at == timedelta(seconds=30)
    assert all(MINUTE <= push.expires_at - push.created_at < 2 * MINUTE for push in rest)
    with db.begin() as session:
        session.enqueue(Push, [{"unique_key": "b"}], on_conflict="replace")
        session.enqueue(Push, [{"unique_key": "c"}], on_conflict="replace", expires=10 * MINUTE)
    first, second, third, _ = load_all(db, Push)
    assert second.expires_at is None, "it is enqueued anew, without a limit"
    assert third.expires_at - third.created_at > 9 * MINUTE


@pytest.mark.one_engine
def test_what_is_made_available_again_does_not_expire(sync_db: Database) -> None:
    sync_db.insert(Push, [*rows(1, expires_at=PAST), *rows(1, "retryable", expires_at=PAST)])
    first, second = load_all(sync_db, Push)
    assert sync_db.committed.retry(Push, Push.id == second.id) == 1
    with sync_db.begin() as session:
        assert [push.id for push in session.claim_many(Push, limit=5)] == [second.id]
    assert sync_db.committed.rerun(Push) == 1
    with sync_db.begin() as session:
        assert [push.id for push in session.claim_many(Push, limit=5)] == [first.id]


# -- with other kinds of queues, and what operators see ---------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Past(HistoryMixin, Base):
    __tablename__ = "past"


class Slot(SlotMixin, Base):
    __tablename__ = "slot"


class Call(ExpiryMixin, JobMixin, LimitMixin, Base):
    __tablename__ = "call"
    __queue__ = QueueOptions(slots=Slot, limit=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Crawl(ExpiryMixin, Base):
    __tablename__ = "crawl"
    __queue__ = QueueOptions(fair="site")

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    site: Mapped[str]


@pytest.fixture
def sessions() -> Iterator[sessionmaker[QueueSession]]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


def test_the_slots_of_expired_tasks_are_free(sessions: sessionmaker[QueueSession]) -> None:
    with sessions.begin() as session:
        late = [{"task": "x", "limit_key": "a", "expires_at": PAST} for _ in range(5)]
        session.enqueue(Call, [*late, *({"task": "x", "limit_key": "a"} for _ in range(4))])
    with sessions.begin() as session:
        assert [call.id for call in session.claim_many(Call, limit=3)] == [6, 7]
        assert session.stats(Call).counts["cancelled"] == 5


def test_keys_of_a_fair_queue_take_turns_past_expired_tasks(sessions: sessionmaker[QueueSession]) -> None:
    with sessions.begin() as session:
        late = [{"site": "a", "expires_at": PAST} for _ in range(30)]
        session.enqueue(Crawl, [*late, *({"site": site, "expires_at": None} for site in "aabb")])
    with sessions.begin() as session:
        assert sorted(crawl.site for crawl in session.claim_many(Crawl, limit=4)) == ["a", "a", "b", "b"]


def test_operators_see_why_it_was_not_run(
    sessions: sessionmaker[QueueSession], caplog: pytest.LogCaptureFixture
) -> None:
    worker, ran = Worker(sessions), list[str]()

    @worker.task(Call)
    def ring(name: str) -> None:
        ran.append(name)

    with sessions.begin() as session:
        ring.options(expires_at=PAST).enqueue(session, "Ada")
        ring.options(expires=MINUTE).enqueue(session, "Grace")
        late, _ = session.find(Call)
        (reason,) = session.why(late).reasons
        assert (reason.cause, reason.since) == (Cause.EXPIRED, PAST)
    with caplog.at_level(logging.INFO, "sqlqueue"):
        assert drain(worker) == {"completed": 1}
    assert ran == ["Grace"]
    (line,) = [record for record in caplog.records if "expired" in record.message]
    assert line.message == "call: 1 tasks expired before they were started, and are cancelled"
    with sessions() as session:
        late, _ = session.find(Call)
        assert str(session.why(late)).endswith(": expired.")
        (attempt,) = session.history(late)
        assert (attempt.outcome, attempt.error) == ("cancelled", "expired")
        assert session.find(Call, Call.error == "expired")[0].id == late.id


def test_bad_input(sessions: sessionmaker[QueueSession]) -> None:
    with sessions() as session:
        for complaint, arguments in (
            ("derive it from ExpiryMixin", ([Task()], {"expires": MINUTE})),
            ("expires=datetime.timedelta", ([Crawl(site="a")], {"expires": timedelta(0)})),
            ("before it is due", ([Crawl(site="a")], {"expires": MINUTE, "delay": MINUTE})),
            ("leave out expires_at", ([Crawl(site="a", expires_at=FUTURE)], {"expires": MINUTE})),
            ("leave out expires_at", ([Crawl, [{"site": "a", "expires_at": FUTURE}]], {"expires": MINUTE})),
            ("copy=True cannot", ([Crawl, [{"site": "a"}]], {"expires": MINUTE, "copy": True})),
        ):
            given: Any = arguments
            with pytest.raises(ArgumentError, match=complaint):
                session.enqueue(*given[0], **given[1])
    for mixin in (RecurringMixin, OutboxMixin):
        with pytest.raises(ConfigurationError, match="not expire"):
            type("Wrong", (ExpiryMixin, mixin, Base), {"__tablename__": "wrong", "id": mapped_column(primary_key=True)})
