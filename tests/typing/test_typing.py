# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Only type-checked, by mypy and pyright, both strict: the types of results, and calls that are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import assert_type

from sqlalchemy import String, desc
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, selectinload, sessionmaker

import sqlqueue
from sqlqueue import (
    AsyncQueueSession,
    Bucket,
    Claim,
    Cron,
    DeclaredSchedules,
    ErrorGroup,
    Event,
    Every,
    ExponentialBackoff,
    FlowMixin,
    Pause,
    PauseMixin,
    Pruned,
    QueueMixin,
    QueueOptions,
    QueueOverview,
    QueueSession,
    QueueStats,
    Reactivated,
    RecurringMixin,
    Released,
    Status,
    TaskBatch,
    TaskGroup,
    TopicMixin,
    WorkerInfo,
    abandoned,
    utcnow,
)

MINUTE = timedelta(minutes=1)


class Base(DeclarativeBase):
    pass


class Email(QueueMixin, Base):
    __tablename__ = "email"
    __queue__ = QueueOptions(lease=MINUTE, retry=ExponentialBackoff(MINUTE), order_by=(desc("id"), "priority"))

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(320))


class Letter(TopicMixin, Base):
    __tablename__ = "letter"
    __queue__ = QueueOptions(retry=lambda attempt: attempt * MINUTE, on_complete="delete")

    id: Mapped[int] = mapped_column(primary_key=True)


class Feed(RecurringMixin, Base):
    __tablename__ = "feed"

    id: Mapped[int] = mapped_column(primary_key=True)


class Page(FlowMixin, Base):
    __tablename__ = "page"

    id: Mapped[int] = mapped_column(primary_key=True)


class QueuePause(PauseMixin, Base):
    __tablename__ = "queue_pause"


class Address(Base):
    __tablename__ = "address"

    id: Mapped[int] = mapped_column(primary_key=True)


def columns(email: Email, letter: Letter) -> None:
    assert_type(email.status, str)
    assert_type(email.priority, int)
    assert_type(email.attempt, int)
    assert_type(email.available_at, datetime)
    assert_type(email.claimed_at, datetime | None)
    assert_type(email.error, str | None)
    assert_type(letter.topic, str)
    email.status = Status.AVAILABLE
    email.priority = "high"  # type: ignore[assignment]
    print(email.topic)  # type: ignore[attr-defined]


def methods(session: QueueSession) -> None:
    assert_type(session.claim(Email), Email | None)
    assert_type(session.claim(Email, Email.id == 7, Email.recipient.like("a%"), lease=None), Email | None)
    assert_type(session.claim(Letter, Letter.topic == "a", order_by=Letter.id, claimed_by="me"), Letter | None)
    assert_type(session.claim_many(Email, limit=3, order_by=[Email.id.desc()], lease=MINUTE), Sequence[Email])
    assert_type(session.consume(Email), Email | None)
    assert_type(session.consume_many(Email, limit=3, options=[selectinload("*")]), Sequence[Email])
    with session.claiming(Email, Email.id == 7) as email:
        assert_type(email, Email | None)


def settling(session: QueueSession, email: Email, letters: list[Letter], claims: set[Claim]) -> None:
    session.complete(email)
    session.complete(letters)
    session.complete(letter for letter in letters)
    session.fail(claims, ValueError(), MINUTE)
    session.fail(email, "text", retry_in=MINUTE)
    session.discard(sqlqueue.claim_of(email), "text")
    session.release(email)
    session.snooze(email, MINUTE)
    session.heartbeat(email)
    assert_type(sqlqueue.claim_of(email), Claim)
    assert_type(session.cancel(email), None)
    assert_type(session.cancel(Email, Email.id == 7), int)
    assert_type(session.discard(email, "text"), None)
    assert_type(session.discard(Email, Email.id == 7, error="text"), int)


def sets(session: QueueSession) -> None:
    assert_type(session.retry(Email, Email.id == 7), Reactivated)
    assert_type(session.rerun(Email, Email.id == 7, limit=9), Reactivated)
    assert_type(sqlqueue.rerun(session, Email).taken, int)
    assert_type(session.rescue(Email), int)
    assert_type(session.run_now(Email), int)
    assert_type(session.prune(Email, MINUTE), Pruned)
    assert_type(session.prune(Email, MINUTE, adopted=True).protected, int)
    assert_type(session.stats(Email), QueueStats)
    assert_type(session.stats_by(Letter, Letter.topic, Letter.id > 7), dict[str, QueueStats])
    assert_type(session.stats_by(Email, Email.claimed_by), dict[str | None, QueueStats])
    session.stats_by(Email, "topic")  # type: ignore[arg-type]
    assert_type(session.overview(Email, abandoned(Email)), QueueOverview)
    assert_type(session.timeline(Email, Email.id == 7, bucket=MINUTE), list[Bucket])
    assert_type(session.stats(Email).counts, Mapping[Status, int])
    assert_type(session.stats(Email)["running"], int)
    assert_type(session.errors(Email), list[ErrorGroup])
    assert_type(session.find(Email, Email.created_at <= utcnow(-MINUTE), limit=3, order_by=desc("id")), Sequence[Email])


def pausing(session: QueueSession) -> None:
    assert_type(session.pause(Letter, "news", reason="text", paused_by="me"), bool)
    assert_type(session.resume(Letter, "news"), bool)
    assert_type(session.paused(Letter), list[Pause])
    assert_type(QueuePause().reason, str | None)


def workers(session: QueueSession) -> None:
    assert_type(session.workers(Base), list[WorkerInfo])
    assert_type(session.unserved(Letter), list[type[QueueMixin]])
    assert_type(session.drain_workers(Base, "web-1:211"), int)
    assert_type(session.release_workers(Base, "web-1"), Released)
    assert_type(session.set_concurrency(Base, None), int)
    assert_type(sqlqueue.Worker(sessionmaker(), version="1.2").metrics(), bytes | None)


def batches(session: QueueSession, page: Page) -> None:
    with session.batch("import 7") as batch:
        assert_type(batch, TaskBatch)
        assert_type(batch.add(page), Page)
        group = batch.add(Page, [{"id": 7}], copy=True)
        assert_type(group, TaskGroup)
        batch.add(Page(), after=[page, group], when="failed")
        assert_type(batch.then(Page(), when="final"), Page)
        batch.then(Page(), when="ended")  # type: ignore[arg-type]
        batch.add(Page(), [{}])  # type: ignore[call-overload]
    with session.batch("import 8", sealed=False, into=page):
        pass
    assert_type(session.seal(Page, "import 8"), bool)
    assert_type(session.advance(Page), int)
    assert_type(session.predecessors(Page, Page.id > 7, of=page), Iterator[Page])
    assert_type(session.find(Page, sqlqueue.member_of(Page, "import 7")), Sequence[Page])
    assert_type(session.progress(Page, "import 7"), sqlqueue.BatchProgress | None)
    assert_type(session.graph(Page, "import 7"), sqlqueue.Graph | None)
    assert_type(session.cancel_batch(Page, "import 7", limit=7), int)
    assert_type(page.reports_to, str | None)
    session.enqueue(Page(), after=[page, "label"], when="failed", timeout=MINUTE, into="import 7")
    session.enqueue(Page, [{}], into=page)
    session.enqueue(Page(), after=7)  # type: ignore[call-overload]
    assert_type(session.open_event(Page, "label", {"a": 1}), bool)
    assert_type(session.event(Page, "label"), Event | None)


async def async_batches(session: AsyncQueueSession) -> None:
    async with session.batch() as batch:
        assert_type(batch.add(Page()), Page)
    assert_type(await session.advance(Page), int)


def enqueueing(session: QueueSession, emails: list[Email]) -> None:
    assert_type(session.enqueue(Email()), None)
    session.enqueue(emails, on_conflict="ignore")
    session.enqueue([Email(), Letter()])
    session.enqueue(Email, [{"recipient": "ada"}], on_conflict="rerun", copy=False)


async def coroutines(session: AsyncQueueSession, emails: list[Email]) -> None:
    assert_type(await session.claim(Email), Email | None)
    assert_type(await session.claim_many(Email, Email.id == 7, limit=3), Sequence[Email])
    assert_type(await session.consume(Email), Email | None)
    assert_type(await session.consume_many(Email, limit=3), Sequence[Email])
    async with session.claiming(Email) as email:
        assert_type(email, Email | None)
    await session.complete(emails)
    assert_type(await session.cancel(Email), int)
    assert_type(await session.cancel(emails), None)
    assert_type(await session.stats(Email), QueueStats)
    assert_type(await session.stats_by(Letter, Letter.topic), dict[str, QueueStats])
    assert_type(await session.overview(Email), QueueOverview)
    assert_type(await session.timeline(Email, since=MINUTE), list[Bucket])
    assert_type(await session.find(Email), Sequence[Email])
    assert_type(await session.discard(Email, error="text"), int)
    assert_type(await session.discard(emails, "text"), None)
    assert_type(await session.pause(Email), bool)
    assert_type(await session.enqueue(Email, [{"recipient": "ada"}]), None)


async def functions(sync: Session, scoped: scoped_session[Session], plain: AsyncSession) -> None:
    assert_type(sqlqueue.claim(sync, Email), Email | None)
    assert_type(sqlqueue.claim_many(scoped, Email, limit=3), Sequence[Email])
    assert_type(await plain.run_sync(sqlqueue.claim, Email), Email | None)
    assert_type(await plain.run_sync(sqlqueue.claim, Email, Email.id == 7), Email | None)
    # mypy does not check keywords next to *where through run_sync
    assert_type(await plain.run_sync(lambda session: sqlqueue.claim(session, Email, lease=None)), Email | None)
    assert_type(await plain.run_sync(sqlqueue.claim_many, Email, limit=3), Sequence[Email])
    assert_type(await plain.run_sync(sqlqueue.rescue, Email), int)
    await plain.run_sync(sqlqueue.complete, Email())
    with sqlqueue.claiming(sync, Email) as email:
        assert_type(email, Email | None)


def makers(sync: sessionmaker[QueueSession], coroutine: async_sessionmaker[AsyncQueueSession]) -> None:
    assert_type(sync(), QueueSession)
    assert_type(coroutine(), AsyncQueueSession)
    sessionmaker(class_=QueueSession)
    async_sessionmaker(class_=AsyncQueueSession)


async def waiting(
    sync: sessionmaker[QueueSession], coroutine: async_sessionmaker[AsyncQueueSession], email: Email
) -> None:
    assert_type(sqlqueue.wait_for(sync, email, timeout=MINUTE), Email)
    assert_type(sqlqueue.wait_for(sync, [email], timeout=MINUTE), list[Email])
    assert_type(await sqlqueue.wait_for(coroutine, email, timeout=MINUTE), Email)
    assert_type(await sqlqueue.wait_for(coroutine, [email], timeout=MINUTE), list[Email])


def errors(session: QueueSession, email: Email) -> None:
    session.claim(Address)  # type: ignore[type-var]
    session.claim(email)  # type: ignore[arg-type]
    session.claim("Email")  # type: ignore[arg-type]
    session.claim(Email, "id = 7")  # type: ignore[arg-type]
    session.claim(Email, email.id == 7)  # type: ignore[arg-type]
    session.claim(Email, lease=30)  # type: ignore[arg-type]
    session.claim(Email, lease="forever")  # type: ignore[arg-type]
    session.claim_many(Email)  # type: ignore[call-arg]
    session.claim_many(Email, limit=1.5)  # type: ignore[arg-type]
    session.complete(session.claim(Email))  # type: ignore[arg-type]
    session.complete(Address())  # type: ignore[arg-type]
    session.fail(email)  # type: ignore[call-arg]
    session.discard(Email, Email.id == 7)  # type: ignore[call-overload]
    session.fail(email, None)  # type: ignore[arg-type]
    session.snooze(email, 30)  # type: ignore[arg-type]
    session.enqueue(email, on_conflict="update")  # type: ignore[call-overload]
    session.enqueue(Email)  # type: ignore[call-overload]
    session.enqueue(Email, {"recipient": "ada"})  # type: ignore[dict-item]
    print(session.claim(Email).recipient)  # type: ignore[union-attr]
    QueueOptions(lease=30)  # type: ignore[arg-type]
    QueueOptions(on_complete="remove")  # type: ignore[arg-type]


async def asyncio_errors(session: AsyncQueueSession, plain: AsyncSession) -> None:
    sqlqueue.claim(session, Email)  # type: ignore[arg-type]
    sqlqueue.claim(plain, Email)  # type: ignore[arg-type]
    print((await session.claim(Email)).recipient)  # type: ignore[union-attr]
    await session.claim(Address)  # type: ignore[type-var]


async def a_schedule_is_given_as_it_is(session: QueueSession, other: AsyncQueueSession, feed: Feed) -> None:
    feed.schedule = Every(MINUTE)
    feed.schedule = Cron("0 3 * * *", "Europe/Berlin")
    feed.schedule = "PT1M"
    feed.schedule = None
    feed.schedule = MINUTE  # type: ignore[assignment]
    assert_type(Feed().schedule, str | None)
    rows = [{"id": 1, "schedule": Every(MINUTE)}, {"id": 2, "schedule": "PT1M"}]
    assert_type(session.declare_schedules(Feed, rows, Feed.id > 0, remove_missing=True), DeclaredSchedules)
    assert_type(await other.declare_schedules(Feed, [Feed(id=1, schedule=Every(MINUTE))]), DeclaredSchedules)
    session.declare_schedules(Email, rows)  # type: ignore[arg-type]


def only_public_names_are_attributes_of_the_package() -> None:
    print(sqlqueue.no_such_name)  # type: ignore[attr-defined]
