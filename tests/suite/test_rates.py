"""How many tasks with the same key start within a time: at most as many as its rate says, whenever it begins."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, Integer, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import (
    ArgumentError,
    Cause,
    ConfigurationError,
    Limit,
    LimitMixin,
    QueueMixin,
    QueueOptions,
    Rate,
    UniqueMixin,
    claim_of,
    utcnow,
)
from sqlqueue.kinds.limits import PLACE, holder
from tests.suite import children
from tests.suite.limited import locks_rows, visits
from tests.suite.settlements import ENDINGS, SETTLINGS
from tests.support.harness import Database
from tests.support.models import Base, Slot, Visit
from tests.support.processes import Processes
from tests.support.rows import PAST, contenders, count, waited, without_waiting
from tests.support.workers import eventually

HOUR = timedelta(hours=1)


class Fetching(LimitMixin, UniqueMixin, Base):
    """A queue with a rate and without a limit."""

    __tablename__ = "fetching"
    __queue__ = QueueOptions(slots=Slot, rate=Rate(3, per=HOUR))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


def fetches(db: Database, *keys: str | None) -> None:
    db.insert(Fetching, [{"limit_key": key} for key in keys])


def start(db: Database, number: int = 100, model: Any = Fetching) -> list[Any]:
    return [claim_of(task) for task in db.committed.claim_many(model, limit=number)]


def wait_for_starts(db: Database) -> None:
    """Let the time pass that all places wait for."""
    db.execute(update(Slot).where(Slot.slot_number < 0).values(available_at=utcnow(timedelta(seconds=-1))))


def limit_of(db: Database, key: str = "a", model: Any = Fetching) -> Limit:
    return next(each for each in db.session().limits(model) if each.key == key)


@pytest.fixture(params=["worth one", "worth several"])
def few_places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of three are two places, of which one is worth two starts."""
    if request.param == "worth several":
        monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 2)


# -- no time of the length has more starts ----------------------------------------------------------------------------


def worst(moments: Sequence[datetime], per: timedelta) -> int:
    """Return the highest number of moments in a time of this length, without its end."""
    tick = timedelta.resolution
    return max(n + 1 - bisect_left(moments, moment - per + tick) for n, moment in enumerate(moments))


def started(db: Database, key: str) -> list[datetime]:
    read = select(Visit.claimed_at).where(Visit.limit_key == key, Visit.claimed_at.is_not(None))
    with db.engine.connect() as connection:
        return sorted(connection.scalars(read))


def test_no_time_has_more_starts_when_claimers_are_killed(
    sync_db: Database, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, several = Rate(8, per=timedelta(seconds=0.4)), Rate(12, per=timedelta(seconds=0.5))
    visits(sync_db, *["single", "several"] * 400)
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 8)
    for key, rate in (("single", single), ("several", several)):
        sync_db.committed.set_limit(Visit, key, None)
        sync_db.committed.set_rate(Visit, key, rate)
    hours = [1, -1, 0]
    running = [processes.spawn(children.start, sync_db.url, each) for each in hours]
    for child in running:
        child.wait_until_arrived()
    for child in running:
        child.let_pass()
    for killed in range(2):
        done = len(started(sync_db, "single"))
        eventually(lambda done=done: len(started(sync_db, "single")) >= done + 10)
        running[killed].kill()
        running[killed] = child = processes.spawn(children.start, sync_db.url, hours[killed])
        child.wait_until_arrived()
        child.let_pass()
    eventually(lambda: len(started(sync_db, "several")) > 30)
    for child in running:
        child.kill()
    assert worst(started(sync_db, "single"), single.per) <= single.starts
    assert worst(started(sync_db, "several"), several.per) <= several.starts


@pytest.mark.usefixtures("few_places")
def test_one_transaction_starts_at_most_the_rate(db: Database) -> None:
    fetches(db, *"aaaaab", None, None)
    with db.session() as actor:
        found = actor.claim_many(Fetching, limit=100)
        assert [task.limit_key for task in found] == ["a", "a", "a", "b", None, None]
        assert actor.claim(Fetching) is None
        actor.rollback()
    assert len(start(db)) == 6  # the rollback has given everything back
    assert start(db) == []
    assert limit_of(db).started == 3
    wait_for_starts(db)
    assert len(start(db)) == 2


@locks_rows
@pytest.mark.parametrize("lease", ["default", None])
def test_uncommitted_starts_count(db: Database, lease: Any) -> None:
    fetches(db, *"aaaab")
    fetches(db, *"aaa")
    assert len(start(db, 1)) == 1
    a, b = contenders(db)
    assert len(a.claim_many(Fetching, Fetching.limit_key == "a", limit=1, lease=lease)) == 1
    found = without_waiting(a, lambda: b.claim_many(Fetching, limit=9, lease=lease))
    assert [task.limit_key for task in found] == ["a", "b"]
    b.rollback()
    a.rollback()


@locks_rows
@pytest.mark.filterwarnings("ignore:a claim in a REPEATABLE READ transaction can fail")
def test_starts_that_the_transaction_does_not_see_yet_count(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 1)
    fetches(sync_db, *"aaaaa")
    start(sync_db, 1)
    with sync_db.variant(isolation_level="REPEATABLE READ").session() as actor:
        assert len(actor.find(Fetching)) == 5  # from here on its snapshot is current
        start(sync_db, 1)
        with suppress(DBAPIError):  # some engines reject this
            actor.claim_many(Fetching, limit=9)
            actor.commit()
    assert count(sync_db, Fetching, Fetching.status == "running") <= 3


@locks_rows
def test_open_claims_withhold_few_starts_that_they_do_not_use(sync_db: Database) -> None:
    """Of places worth several starts, each withholds what is left of one."""
    sync_db.committed.set_rate(Fetching, "a", Rate(300, per=HOUR))
    fetches(sync_db, *["a"] * 310)
    with ExitStack() as open_:
        sessions = [open_.enter_context(sync_db.session()) for _ in range(5)]
        found = [len(session.claim_many(Fetching, limit=70)) for session in sessions]
        assert found == [70, 70, 70, 70, 300 - 4 * 72]
        for session in sessions:
            session.commit()
    assert len(start(sync_db)) == 4 * 2


def test_starts_fill_the_rounds_that_have_begun(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fullest first: a place whose round ends late is free late, so that less than the rate would start."""
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 4)
    sync_db.committed.set_rate(Fetching, "a", Rate(12, per=HOUR))
    fetches(sync_db, *"aaa")
    for number, starts in ((1, 1), (2, 2), (3, 1)):
        begun = {"status": "running", "attempt": starts, "available_at": utcnow(HOUR)}
        sync_db.execute(update(Slot).where(Slot.slot_number == -number).values(begun))
    found = list[list[int]]()
    for _ in range(3):
        start(sync_db, 1)
        with sync_db.engine.connect() as connection:
            places = select(Slot.attempt).where(Slot.slot_number < 0).order_by(Slot.attempt.desc())
            found.append(list(connection.scalars(places)))
    assert found == [[3, 1, 1, 0], [3, 2, 1, 0], [3, 3, 1, 0]]


def test_the_time_of_a_start_is_written_after_the_task(sync_db: Database) -> None:
    """Otherwise, a start that is late would not wait for the whole time after the one before it."""
    fetches(sync_db, "a")
    start(sync_db)
    with sync_db.engine.connect() as connection:
        claimed_at = connection.scalar(select(Fetching.claimed_at))
        place = select(Slot.claimed_at, Slot.available_at).where(Slot.slot_number < 0, Slot.status == "running")
        since, freed = connection.execute(place).one()
    assert since >= claimed_at
    assert freed - HOUR >= claimed_at


# -- what gives a start back, and what does not -----------------------------------------------------------------------


def test_every_ending_but_a_release_is_charged(db: Database) -> None:
    for number, call in enumerate(ENDINGS):
        key = str(number)
        fetches(db, *[key] * 3)
        claims = start(db)
        assert len(claims) == 3
        with db.begin() as actor:
            SETTLINGS[call](actor, claims)
        assert limit_of(db, key).started == (0 if call == "release" else 3), call
        db.committed.cancel(Fetching)


def test_a_release_gives_back_no_place_worth_several(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 1)
    fetches(db, *"aaaa")
    db.committed.release(start(db, 2))
    assert (limit_of(db).started, limit_of(db).next_start) == (2, None)
    assert len(start(db)) == 1
    assert limit_of(db).next_start is not None


def test_a_release_gives_back_no_start_of_others(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a place that was worth one when its task started, and is worth several now."""
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 1)
    db.committed.set_rate(Fetching, "a", Rate(1, per=HOUR))
    fetches(db, *"aaa")
    first = start(db)
    db.committed.set_rate(Fetching, "a", Rate(3, per=HOUR))
    assert len(start(db, 1)) == len(first) == 1
    db.committed.release(first)
    assert limit_of(db).started == 2


def test_a_task_without_a_limit_keeps_its_lease(db: Database) -> None:
    fetches(db, "a")
    (claim,) = start(db)
    db.committed.heartbeat(claim)
    db.committed.complete(claim)


def test_consumed_tasks_are_charged(db: Database) -> None:
    fetches(db, *"aaaa")
    assert len(db.committed.consume_many(Fetching, limit=9)) == 3
    assert start(db) == []


# -- rates and limits together, and how they are changed --------------------------------------------------------------


def test_a_key_has_a_limit_and_a_rate(db: Database) -> None:
    visits(db, *"aaaaaa")
    db.committed.set_rate(Visit, "a", Rate(3, per=HOUR))
    claims = start(db, model=Visit)
    assert len(claims) == 2  # its limit
    assert limit_of(db, model=Visit).running == 2
    assert db.committed.overview(Visit).claimable == 0  # although the rate allows another
    db.committed.complete(claims)
    claims = start(db, model=Visit)
    assert len(claims) == 1
    assert db.committed.overview(Visit).claimable == 0  # although the limit allows another
    found = limit_of(db, model=Visit)
    assert (found.limit, found.running, found.rate, found.started) == (2, 1, Rate(3, per=HOUR), 3)
    assert found.next_start is not None
    db.committed.set_limit(Visit, "a", None)
    db.committed.set_rate(Visit, "a", Rate(4, per=HOUR))
    assert len(start(db, model=Visit)) == 1
    db.committed.set_rate(Visit, "a", None)
    assert limit_of(db, model=Visit) == Limit("a", None, None)
    assert len(start(db, model=Visit)) == 2


def test_places_do_not_hide_the_slots_of_a_key(db: Database) -> None:
    visits(db, *"aaa")
    db.committed.set_rate(Visit, "a", Rate(100, per=HOUR))
    assert len(start(db, 1, Visit)) == 1


def test_a_rate_is_changed(db: Database) -> None:
    fetches(db, *["a"] * 20)
    assert len(start(db)) == 3
    for rate, more in ((Rate(5, per=HOUR), 2), (Rate(2, per=HOUR), 0), (Rate(6, per=HOUR), 1)):
        db.committed.set_rate(Fetching, "a", rate)
        assert (rate, len(start(db))) == (rate, more)
    db.committed.set_rate(Fetching, "a", None)
    db.committed.set_rate(Fetching, "a", Rate(6, per=timedelta(milliseconds=1)))
    time.sleep(0.01)
    assert len(start(db)) == 6


def test_starts_count_for_another_time_from_its_change_on(db: Database) -> None:
    fetches(db, *["a"] * 12)
    assert len(start(db)) == 3
    before = limit_of(db).next_start
    db.committed.set_rate(Fetching, "a", Rate(3, per=HOUR))
    assert limit_of(db).next_start == before
    db.committed.set_rate(Fetching, "a", Rate(3, per=2 * HOUR))
    after = limit_of(db).next_start
    assert after is not None
    assert before is not None
    assert after - before >= HOUR
    wait_for_starts(db)
    assert len(start(db)) == 3
    later = limit_of(db).next_start
    assert later is not None
    assert later >= after  # for this time too
    wait_for_starts(db)
    db.committed.set_rate(Fetching, "a", Rate(3, per=HOUR))
    assert len(start(db)) == 3  # those that are past do not count again
    db.committed.set_rate(Fetching, "a", None)
    assert db.committed.overview(Fetching).limited == 0
    db.committed.set_rate(Fetching, "a", Rate(3, per=HOUR))
    assert len(start(db)) == 3  # a rate that is removed forgets them


def test_a_lowered_rate_counts_what_it_leaves_no_place_for(db: Database) -> None:
    fetches(db, *["a"] * 9)
    claims = [start(db, 1) for _ in range(3)]
    db.committed.set_rate(Fetching, "a", Rate(2, per=HOUR))
    with db.engine.connect() as connection:
        left_out = connection.scalars(select(Slot.claimed_by).where(Slot.slot_number < 0, Slot.max_attempts == 0))
        assert left_out.all() == [holder(claims[0][0], PLACE)]  # the first one, whose time ends first
    db.committed.release(claims[2])
    assert start(db) == []  # two have started within the hour
    assert limit_of(db).next_start is not None
    assert db.committed.overview(Fetching).claimable == 0
    fetches(db, "b")
    assert len(start(db)) == 1  # another key
    db.execute(update(Slot).where(Slot.max_attempts == 0, Slot.slot_number < 0).values(available_at=PAST))
    assert len(start(db)) == 1
    assert limit_of(db).next_start is not None


def test_a_lowered_rate_counts_what_places_have_started(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", 2)
    db.committed.set_rate(Fetching, "a", Rate(6, per=HOUR))
    fetches(db, *["a"] * 9)
    assert len(start(db)) == 6
    db.committed.set_rate(Fetching, "a", Rate(2, per=HOUR))
    first = update(Slot).where(Slot.slot_number == -1).values(available_at=utcnow(timedelta(seconds=-1)))
    db.execute(first)
    assert start(db) == []  # three have started within the hour
    wait_for_starts(db)
    assert len(start(db)) == 2
    db.committed.set_rate(Fetching, "b", Rate(6, per=HOUR))
    fetches(db, *"bb")
    assert len(start(db, 1)) == 1
    db.committed.set_rate(Fetching, "b", Rate(1, per=HOUR))
    assert start(db) == []


def test_the_next_start_is_when_a_place_is_free(db: Database) -> None:
    def freed(number: int) -> datetime | None:
        with db.engine.connect() as connection:
            return connection.scalar(select(Slot.available_at).where(Slot.slot_number == -number))

    fetches(db, *"aaa")
    assert len(start(db)) == 3
    for number in (1, 2, 3):
        times = {"claimed_at": utcnow(number * HOUR), "available_at": utcnow(number * HOUR)}
        db.execute(update(Slot).where(Slot.slot_number == -number).values(times))
    assert limit_of(db).next_start == freed(1)
    db.committed.set_rate(Fetching, "a", Rate(1, per=HOUR))
    assert limit_of(db).next_start == freed(2)  # the first two are more than it allows


@locks_rows
def test_a_rate_waits_for_claims_that_count(sync_db: Database) -> None:
    fetches(sync_db, *"aaaa")
    a, b = contenders(sync_db)
    assert len(a.claim_many(Fetching, limit=9)) == 3
    late, _ = waited(a, lambda: b.set_rate(Fetching, "a", Rate(1, per=HOUR)), within=0.3)
    assert late
    b.commit()
    assert start(sync_db) == []
    assert limit_of(sync_db).started == 3


def test_used_up_keys_do_not_count_as_claimable(db: Database) -> None:
    fetches(db, *"aaaaa", "b", None)
    start(db, 3)
    found = db.committed.overview(Fetching)
    assert (found.claimable, found.limited) == (2, 2)
    wait_for_starts(db)
    assert db.committed.overview(Fetching).limited == 0


def test_why_a_task_waits_for_its_rate(db: Database) -> None:
    fetches(db, *"aaaaa")
    (first, *_) = start(db, 3)
    with db.session() as actor:
        task = actor.get(Fetching, first.identity[0] + 4)
        reason, *_ = actor.why(task).reasons
        until = limit_of(db).next_start
        actor.rollback()
    assert (reason.cause, reason.until) == (Cause.RATE, until)
    assert reason.text == (
        f"3 of at most 3 tasks with its key 'a' have started within 1 h; the next may at {until:%Y-%m-%d %H:%M:%S} UTC"
    )


def test_a_throttle_runs_the_latest_task_once_in_a_time(db: Database) -> None:
    db.committed.set_rate(Fetching, "a", Rate(1, per=HOUR))
    for _ in range(3):
        db.committed.enqueue(Fetching, [{"unique_key": "a", "limit_key": "a"}], on_conflict="replace")
    db.committed.complete(start(db))
    db.committed.enqueue(Fetching, [{"unique_key": "a", "limit_key": "a"}])
    assert start(db) == []
    assert count(db, Fetching) == 2


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "per", "message"),
    [
        (0, HOUR, "starts=0: give a positive integer"),
        (True, HOUR, "starts=True: give a positive integer"),
        (10**10, HOUR, "give at most 1,000,000,000"),
        (1, timedelta(0), "per=.*give a positive timedelta"),
        (1, timedelta(microseconds=1_500), "give whole milliseconds"),
        (1, timedelta(days=401), "at most 400 days"),
        (1, 60, "per=60: give a positive timedelta"),
    ],
)
def test_rates_that_are_none(starts: Any, per: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Rate(starts, per=per)


def test_a_rate_is_told_in_words() -> None:
    assert str(Rate(1_000, per=timedelta(minutes=1))) == "1,000 per 1 min"
    assert str(Rate(2, per=timedelta(days=1, hours=2, milliseconds=30))) == "2 per 1 d 2 h 30 ms"


@pytest.mark.parametrize(
    ("mixin", "options", "message"),
    [
        (QueueMixin, {"rate": Rate(1, per=HOUR)}, "rate= is for models that derive from LimitMixin"),
        (QueueMixin, {"limit": 2}, "limit= is for models that derive from LimitMixin"),
        (LimitMixin, {"rate": Rate(1, per=HOUR)}, "slots= is missing"),
    ],
)
def test_models_that_cannot_have_a_rate(mixin: Any, options: dict[str, Any], message: str) -> None:
    body = {
        "__tablename__": message,
        "__queue__": QueueOptions(**options),
        "id": mapped_column(Integer, Identity(), primary_key=True),
    }
    with pytest.raises(ConfigurationError, match=message):
        type("Refused", (mixin, Base), body)


def test_arguments_of_rates_are_checked(sync_db: Database) -> None:
    with pytest.raises(ArgumentError, match="rate=5: give a Rate"):
        QueueOptions(rate=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rate=5: give a Rate"):
        sync_db.committed.set_rate(Visit, "a", 5)
