"""Pausing a queue, or a topic of it, in all workers at once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, MetaData, create_engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

import sqlqueue
from sqlqueue import ArgumentError, ConfigurationError, PauseMixin, QueueMixin, QueueSession
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.control import not_paused
from sqlqueue.operations.upkeep import poll
from tests.suite.simultaneous import simultaneously
from tests.support.harness import Database
from tests.support.models import Mail, Notice, QueuePause, Reminder, Task
from tests.support.rows import clock, rows, waited

pytestmark = pytest.mark.sync_only


def keys(db: Database) -> set[str]:
    with db.engine.connect() as connection:
        return set(connection.scalars(select(QueuePause.queue)))


# -- the functions -----------------------------------------------------------------------------------------------------


def test_pause_and_resume(db: Database) -> None:
    with db.begin() as session:
        assert session.resume(Task) is False
        assert session.paused(Task) == []
    with db.begin() as session:
        assert session.pause(Task, reason="the mail server is down", paused_by="ada") is True
        assert session.pause(Task, reason="within the same transaction") is False
    assert db.committed.pause(Task, reason="second", paused_by="grace") is False
    (pause,) = db.committed.paused(Task)
    assert (pause.topic, pause.paused_by, pause.reason) == (None, "ada", "the mail server is down")
    assert abs(pause.paused_at - clock(db)) < timedelta(minutes=1)
    assert db.committed.paused(Mail) == []
    with db.session() as session:
        session.pause(Mail)
        session.rollback()
    assert keys(db) == {"task"}, "a pause is part of the transaction"
    with db.begin() as session:
        assert session.resume(Task) is True
        assert session.paused(Task) == []
    assert keys(db) == set()


def test_topics_are_paused_by_themselves(db: Database) -> None:
    with db.begin() as session:
        assert [session.pause(Mail, topic) for topic in ("news", "bills", None)] == [True] * 3
        assert [pause.topic for pause in session.paused(Mail)] == [None, "bills", "news"]
    assert keys(db) == {"mail", "mail:bills", "mail:news"}
    with db.begin() as session:
        assert session.resume(Mail) is True
        assert session.resume(Mail, "sales") is False
        assert [pause.topic for pause in session.paused(Mail)] == ["bills", "news"]


def test_classes_of_one_table_are_paused_together(db: Database) -> None:
    with db.begin() as session:
        session.pause(Reminder)
        assert session.paused(Notice)


@pytest.mark.every_engine
@pytest.mark.parametrize("resumes", [False, True])
def test_a_pause_waits_for_an_open_change(db: Database, resumes: bool) -> None:
    if resumes:
        db.committed.pause(Task, paused_by="nobody")
    first, second = db.session(), db.session()
    assert first.resume(Task) if resumes else first.pause(Task, paused_by="first")
    had_to_wait, told = waited(first, lambda: second.pause(Task, paused_by="second"), within=0.3)
    assert (had_to_wait, told) == (True, resumes)
    assert [pause.paused_by for pause in second.paused(Task)] == ["second" if resumes else "first"]
    second.commit()
    assert keys(db) == {"task"}


def test_many_sessions_pause_at_once(sync_db: Database) -> None:
    told: list[bool] = []
    simultaneously(sync_db, *[lambda transaction: told.append(transaction(lambda actor: actor.pause(Task)))] * 8)
    assert sorted(told) == [False] * 7 + [True]


@pytest.mark.requires("locks_rows")
def test_the_victim_of_a_deadlock_gets_an_error(sync_db: Database) -> None:
    sync_db.insert(Task, rows(1))
    engine = sync_db.variant(isolation_level="READ COMMITTED")
    slower, faster = engine.session(), sync_db.session()
    lock = select(Task).with_for_update()
    with ThreadPoolExecutor(2) as threads:

        def outrun(*arguments: Any) -> None:
            if "INSERT INTO queue_pause" in arguments[2]:
                faster.pause(Task)
                waiting.append(threads.submit(faster.scalars, lock))

        waiting: list[Future[Any]] = []
        slower.scalars(lock).all()
        event.listen(engine.session_engine, "before_cursor_execute", outrun)
        errors = [threads.submit(slower.pause, Task).exception()]
        slower.rollback()
        errors.append(waiting[0].exception())
    (error,) = filter(None, errors)
    assert isinstance(error, DBAPIError)
    assert adapter_for(engine.session_engine.dialect).connections.is_transient(error)


def test_a_pause_stores_any_reason(db: Database) -> None:
    nasty = "nul \0 and \ud800 and 𝄞" + "x" * 3_000
    with db.begin() as session:
        session.pause(Mail, "ünïcödé"[:1], reason=nasty)
        (pause,) = session.paused(Mail)
    assert pause.reason.startswith("nul \\x00 and \\ud800 and 𝄞")
    assert pause.reason.endswith("…")
    assert ":" in pause.paused_by  # host:pid


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda session: session.pause(Task, "news"), "has no topics"),
        (lambda session: session.pause(Mail, ""), "topic='': give a non-empty string"),
        (lambda session: session.pause(Mail, 7), "topic=7: expected str, got int"),
        (lambda session: session.pause(Task, paused_by=""), "1 to 200 characters"),
        (lambda session: session.pause(QueuePause), "not a queue model"),
    ],
)
def test_arguments_that_cannot_be_paused(call: Any, said: str) -> None:
    with QueueSession() as session, pytest.raises(ArgumentError, match=said):
        call(session)


# -- the model ---------------------------------------------------------------------------------------------------------


def test_a_missing_model_is_an_error() -> None:
    class Base(DeclarativeBase):
        pass

    class Job(QueueMixin, Base):
        __tablename__ = "job"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    engine = create_engine("sqlite://")
    with Session(engine) as session:
        for call in (sqlqueue.pause, sqlqueue.resume):
            with pytest.raises(ConfigurationError, match=r"class QueuePause\(PauseMixin, Base\):") as refused:
                call(session, Job)
            assert refused.value.model is Job
        assert sqlqueue.paused(session, Job) == []
    engine.dispose()


@pytest.mark.parametrize("dataclasses", [False, True])
def test_an_application_can_use_its_own_models(dataclasses: bool) -> None:
    class Plain(DeclarativeBase):
        pass

    class Dataclasses(MappedAsDataclass, DeclarativeBase):
        pass

    base: Any = Dataclasses if dataclasses else Plain

    class Common(base):
        __abstract__ = True

    class Job(QueueMixin, Common):
        __tablename__ = "job"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True, **({"init": False} if dataclasses else {}))

    class Stop(PauseMixin, Common):
        __tablename__ = "stop"

    engine = create_engine("sqlite://")
    base.metadata.create_all(engine)
    with Session(engine) as session:
        sqlqueue.pause(session, Job, reason="why")
        assert session.scalars(select(Stop)).one().reason == "why"
    engine.dispose()

    with pytest.raises(ConfigurationError, match="stop and second: derive only one model from PauseMixin"):

        class Second(PauseMixin, Common):
            __tablename__ = "second"


MORE_THAN_PARAMETERS = 70_000
"""More than any engine's limit of 65,535 parameters."""
ODD = "it's 100% \\ :odd"


def test_any_number_of_topics_may_be_paused(sync_db: Database) -> None:
    topics = [ODD, *(f"topic {n}" for n in range(MORE_THAN_PARAMETERS))]
    sync_db.insert(Mail, [{"topic": topic} for topic in (ODD, topics[-1], "open")])
    adapter = adapter_for(sync_db.session_engine.dialect)
    where = not_paused(adapter, Mail.__queue_spec__, {f"mail:{topic}" for topic in topics})
    assert where is not None
    assert [mail.topic for mail in sync_db.committed.claim_many(Mail, *where, limit=5)] == ["open"]
    with sync_db.begin() as actor:
        due = actor.run(poll, Mail, *where).due  # the heartbeat's; there is no other query
        assert due is not None
        assert due > timedelta(0)


def test_a_model_of_sqlmodel() -> None:
    sqlmodel = pytest.importorskip("sqlmodel")

    class Base(sqlmodel.SQLModel):
        metadata = MetaData()

    class Job(QueueMixin, Base, table=True):
        id: int | None = sqlmodel.Field(default=None, primary_key=True)

    class Stop(PauseMixin, Base, table=True):
        pass

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        assert sqlqueue.pause(session, Job)
        assert sqlqueue.paused(session, Job)
    engine.dispose()
