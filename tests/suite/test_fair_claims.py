"""Claims of several kinds of tasks at once: fair shares of the keys of a queue, and several topics in one order."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Integer, String, delete
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import Cause, Claim, QueueMixin, QueueOptions
from sqlqueue.dialects import adapter_for
from sqlqueue.operations import turns
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.operations.turns import Keys
from sqlqueue.sql import EDGE, picks
from tests.suite.test_plans import median_read
from tests.support.harness import Actor, Database
from tests.support.models import Base, Crawl, Mail, Message
from tests.support.rows import DUE, PAST, TOMORROW, analyze, contenders, ids, insert_many, rows
from tests.support.workers import Workers, eventually


class Tile(QueueMixin, Base):
    """A fair queue with a key of two columns, and a subclass in the same table."""

    __tablename__ = "tile"
    __queue__ = QueueOptions(fair="x", weight=lambda x: 2 if x == 1 else 1, order_by=("y",))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "tile"}  # noqa: RUF012

    x: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    y: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(20))


class Water(Tile):
    __mapper_args__ = {"polymorphic_identity": "water"}  # noqa: RUF012


def crawls(db: Database, **counts: int) -> None:
    """Insert so many tasks of each site; those of `none` have no site."""
    for site, number in counts.items():
        db.insert(Crawl, rows(number, site=None if site == "none" else site, topic="a"))


def sites(tasks: Iterable[Any]) -> Counter[str | None]:
    return Counter(task.site for task in tasks)


def claimed(db: Database, *sizes: int) -> Counter[str | None]:
    """Claim in transactions that are rolled back, and return how many tasks of each site were claimed."""
    found = Counter[str | None]()
    for size in sizes:
        with db.session() as session:
            tasks = session.claim_many(Crawl, limit=size)
            assert len(ids(tasks)) == size
            found += sites(tasks)
            session.rollback()
    return found


# -- shares -----------------------------------------------------------------------------------------------------------


def test_keys_share_claims_by_their_weights(db: Database) -> None:
    """However many tasks each has; no key is a key as well, and tasks of one key keep their order."""
    crawls(db, many=500, gold=400, none=100, few=2)
    with db.begin() as session:
        first = session.claim_many(Crawl, limit=12)
        assert sites(first) == {"many": 2, "gold": 6, None: 2, "few": 2}
        rest = session.claim_many(Crawl, limit=50)
        assert sites(rest) == pytest.approx({"many": 10, "gold": 30, None: 10}, abs=3)
        for site in ("many", "gold", None):
            order = [task.id for task in (*first, *rest) if task.site == site]
            assert order == sorted(order)
    assert sum(claimed(db, *[1] * 5).values()) == 5
    with db.begin() as session:
        assert sites(session.claim_many(Crawl, limit=20, lease=None)) == pytest.approx(
            {"many": 4, "gold": 12, None: 4}, abs=3
        )
        session.rollback()
    with db.begin() as session:
        assert sites(session.consume_many(Crawl, limit=10)) == pytest.approx({"many": 2, "gold": 6, None: 2}, abs=3)
        assert len(session.claim_many(Crawl, limit=2_000)) == 1_002 - 12 - 50 - 10
        assert session.claim(Crawl) is None


def test_shares_are_exact_for_claims_of_any_size(sync_db: Database) -> None:
    counts = {"gold": 60, **{f"site {n:02}": 20 for n in range(49)}}
    crawls(sync_db, **counts)
    sizes = random.Random(7).choices([1, 2, 10, 40], k=100)
    found = claimed(sync_db, *sizes)
    share = sum(sizes) / (49 + 3)
    visit = 2  # of a claim of 40 tasks
    assert found["gold"] == pytest.approx(3 * share, abs=3 * visit)
    for site in counts.keys() - {"gold"}:
        assert found[site] == pytest.approx(share, abs=visit)


@pytest.mark.one_engine
def test_a_visit_goes_on_after_the_keys_are_read_again(sync_db: Database) -> None:
    """Although tasks without a key would come before it."""
    crawls(sync_db, gold=9, **{f"site {n:02}": 1 for n in range(40)})
    sync_db.insert(Crawl, [{"site": None}])
    adapter, spec = adapter_for(sync_db.engine.dialect), Crawl.__queue_spec__
    rotation, pick = turns.Rotation(spec, Keys()), ClaimQuery(spec).steps[0](1)
    with sync_db.session() as session:
        rotation.return_to(EDGE)
        rotation.read(adapter, session.session, pick, 1)
        assert rotation.grant(1, 1, ()) == {None: 1}
        rotation.return_to(EDGE)
        rotation.read(adapter, session.session, pick, 1)
        rotation.run_out({None})
        assert rotation.grant(1, 1, ()) == {"gold": 1}
        rotation.read(adapter, session.session, pick, 1)
        assert rotation.grant(3, 1, ()) == {"gold": 2, "site 00": 1}


@pytest.mark.one_engine
def test_a_key_that_has_run_out_begins_a_new_visit_when_it_has_tasks_again(sync_db: Database) -> None:
    crawls(sync_db, a=9, gold=9)
    adapter, spec = adapter_for(sync_db.engine.dialect), Crawl.__queue_spec__
    rotation, pick = turns.Rotation(spec, Keys()), ClaimQuery(spec).steps[0](9)
    with sync_db.session() as session:
        rotation.return_to(EDGE)
        rotation.read(adapter, session.session, pick, 9)
        assert rotation.grant(2, 9, {None}) == {"a": 1, "gold": 1}
        rotation.run_out({"gold"})
        rotation.read(adapter, session.session, pick, 9)
        assert [*rotation.grant(4, 9, {None}).items()] == [("gold", 3), ("a", 1)]


@pytest.mark.one_engine
def test_the_turns_of_listed_keys_go_on_when_they_are_read_again(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AGE", -1.0)
    crawls(sync_db, a=9, b=9, c=9)
    query = ClaimQuery(Crawl.__queue_spec__, [Crawl.site.in_(["a", "b", "c"])])
    with sync_db.session() as session:
        found = sites(claim_matching(session.session, query, 1)[0] for _ in range(6))
        session.rollback()
    assert found == {"a": 2, "b": 2, "c": 2}


def test_claimers_at_once_share_by_the_weights(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has its own turns, and is off by one visit at the most, although keys are read again within one."""
    monkeypatch.setattr(turns, "AGE", 0.0)
    sizes, claims_of_each = [1, 10, 100], 5
    crawls(sync_db, a=500, b=500, gold=500)

    def claims(actor: Actor) -> Counter[str | None]:
        found = Counter[str | None]()
        for size in sizes * claims_of_each:
            found += sites(actor.claim_many(Crawl, limit=size, lease=None))
            actor.rollback()
        return found

    with ThreadPoolExecutor(4) as pool:
        found = sum(pool.map(claims, [sync_db.variant().session() for _ in range(4)]), Counter[str | None]())
    for site, weight in (("gold", 3), ("a", 1), ("b", 1)):
        assert found[site] == pytest.approx(found.total() * weight / 5, abs=4 * weight)


@pytest.mark.parametrize("size", [1, 10])
def test_each_key_has_its_turn_before_any_has_two(db: Database, size: int) -> None:
    crawls(db, a=200, **{f"site {n:03}": 12 for n in range(59)})
    assert set(claimed(db, *[size] * (60 // size)).values()) == {1}
    crawls(db, b=1)  # within a known order, and at its end
    crawls(db, z=1)
    found = claimed(db, *[size] * (2 * 62 // size + 4))
    assert found["b"] >= 1
    assert found["z"] >= 1


@pytest.mark.requires("locks_rows")
def test_claims_of_the_same_keys_keep_the_shares(sync_db: Database) -> None:
    """Instead of a task that others have locked, a claim takes another one of the same key."""
    crawls(sync_db, a=40, gold=90)
    crawls(sync_db, none=1, b=1)
    open_claims = [sync_db.variant().session() for _ in range(4)]
    tasks = [task for session in open_claims for task in session.claim_many(Crawl, limit=10)]
    found = sites(tasks)
    assert len(ids(tasks)) == 40
    assert (found[None], found["b"]) == (1, 1)
    assert found["gold"] == pytest.approx(3 * found["a"], abs=8)
    for session in open_claims:
        session.rollback()


@pytest.mark.parametrize("walk", ["known", "read"])
def test_a_new_key_is_claimed_at_once(db: Database, walk: str) -> None:
    """Although the next keys have just been read, and the claimer remembers that there are no others."""
    crawls(db, b=1, **({"d": 5} if walk == "known" else {}))
    with db.begin() as session:
        assert len(session.claim_many(Crawl, limit=9)) == (6 if walk == "known" else 1)
        for site in ("a", "c", "e"):
            session.session.add(Crawl(site=site))
            assert sites(session.claim_many(Crawl, limit=9)) == {site: 1}
        assert session.claim(Crawl) is None


def test_a_claim_finds_all_tasks_however_many_keys_have_none(db: Database) -> None:
    crawls(db, **{f"site {n:03}": 1 for n in range(300)})
    db.insert(Crawl, rows(300, available_at=TOMORROW, site="early"))
    db.insert(Crawl, [{**row, "site": f"early {n}"} for n, row in enumerate(rows(300, available_at=TOMORROW))])
    db.insert(Crawl, rows(5, "retryable", site="due"))
    with db.begin() as session:
        assert len(session.claim_many(Crawl, Crawl.site.like("site 29%"), limit=300)) == 10
        locked = session.claim_many(Crawl, limit=280, lease=None)
        assert len(ids(locked)) == 280
        assert len(session.claim_many(Crawl, limit=300, lease=None)) == 15
        session.rollback()


# -- criteria, keys of several columns, and subclasses ----------------------------------------------------------------


def test_criteria_of_claims(db: Database) -> None:
    crawls(db, a=50, b=50, c=5)
    db.insert(Crawl, rows(20, site="a", topic="b"))
    db.insert(Crawl, rows(20, site="d", topic="c"))
    with db.begin() as session:
        claim = session.claim_many
        assert sites(claim(Crawl, Crawl.topic == "b", limit=4)) == {"a": 4}
        assert sites(claim(Crawl, Crawl.topic == "a", limit=9)) == {"a": 3, "b": 3, "c": 3}
        assert sites(claim(Crawl, Crawl.topic.in_(["b", "c"]), limit=8)) == {"a": 4, "d": 4}
        assert sites(claim(Crawl, Crawl.site.in_(["a", "b", "none"]), limit=8)) == {"a": 4, "b": 4}
        assert sites(claim(Crawl, Crawl.site.in_(["b", "c"]), Crawl.topic == "a", limit=4)) == {"b": 2, "c": 2}
        assert sites(claim(Crawl, Crawl.site == "b", limit=3)) == {"b": 3}
        assert sites(claim(Crawl, Crawl.site.is_(None), limit=3)) == {}
        assert sites(claim(Crawl, Crawl.priority == 0, limit=8)).keys() == {"a", "b", "d"}
        (task,) = claim(Crawl, Crawl.site == "d", limit=1)
        session.release(task)
        assert claim(Crawl, Crawl.id == task.id, limit=3) == [task]
        session.rollback()


@pytest.mark.parametrize("lease", ["default", None])
def test_keys_of_two_columns_and_subclasses(db: Database, lease: Any) -> None:
    db.insert(Tile, [{"x": x, "y": y, "kind": "water" if y % 2 else "tile"} for x in (1, 2, 3) for y in range(20)])
    with db.begin() as session:
        first = session.claim_many(Tile, limit=8, lease=lease)
        assert Counter(tile.x for tile in first) == {1: 4, 2: 2, 3: 2}
        assert sorted((tile.x, tile.y) for tile in first if tile.x > 1) == [(2, 0), (2, 1), (3, 0), (3, 1)]
        water = session.claim_many(Water, limit=4, lease=lease)
        assert Counter(tile.x for tile in water) == {1: 2, 2: 1, 3: 1}
        assert {tile.y % 2 for tile in water} == {1}
        session.rollback()


@pytest.mark.sync_only
def test_why_tells_of_turns(db: Database) -> None:
    crawls(db, a=3, none=1)
    with db.session() as session:
        last, other = max(ids(session.claim_many(Crawl, Crawl.site == "a", limit=3))), session.claim(Crawl).id
        session.rollback()
    (reason,) = db.committed.why(Claim(Crawl, (last,), 0)).reasons
    assert (reason.cause, reason.ahead) == (Cause.SHARE, 2)
    assert reason.text == "2 tasks come first among those whose site is 'a', and each site has its turn"
    (reason,) = db.committed.why(Claim(Crawl, (other,), 0)).reasons
    assert (reason.cause, reason.ahead) == (Cause.SHARE, 0)
    assert len(db.committed.claim_many(Crawl, Crawl.site == "a", limit=3)) == 3
    assert [reason.cause for reason in db.committed.why(Claim(Crawl, (other,), 0)).reasons] == [Cause.READY]


@pytest.mark.one_engine
def test_workers_share_their_calls(sync_db: Database) -> None:
    crawls(sync_db, a=300, **{f"site {n}": 1 for n in range(5)})
    started: list[str] = []
    workers = Workers(sync_db)
    try:
        workers.serve(Crawl, lambda crawl: started.append(crawl.site), concurrency=1)
        eventually(lambda: len(started) == 305)
    finally:
        workers.end_test()
    assert {f"site {n}" for n in range(5)} <= set(started[:40])


# -- what is read -----------------------------------------------------------------------------------------------------


def test_the_next_keys_are_read_whatever_comes_and_goes(sync_db: Database) -> None:
    """Compared with a sorted set, from memories that are wrong."""
    chance, keys, there = random.Random(5), Keys(), set[str]()
    pick = ClaimQuery(Crawl.__queue_spec__).steps[0](1)
    adapter = adapter_for(sync_db.engine.dialect)
    for _ in range(25):
        new = {f"{chance.randrange(200):03}" for _ in range(chance.choice([0, 1, 9, 60]))} - there
        old = set(chance.sample(sorted(there), k=min(len(there), chance.choice([0, 1, 40]))))
        sync_db.insert(Crawl, [row for site in sorted(new) for row in rows(3, site=site)]) if new else None
        sync_db.execute(delete(Crawl).where(Crawl.site.in_(sorted(old))))
        there = (there | new) - old
        after = chance.choice([EDGE, *sorted(there | old)])
        with sync_db.session() as session:
            found, are_all, _ = keys.after(adapter, session.session, pick, after, 20)
        ring = [*(site for site in sorted(there) if after is EDGE or site > after), EDGE, *sorted(there)]
        expected = list(dict.fromkeys(ring)) if after is not EDGE else [*sorted(there), EDGE]
        assert found == expected[: len(found)]
        assert len(found) == len(expected) if are_all else len(found) >= 20


def test_a_claim_reads_as_much_of_a_large_backlog_as_of_a_small_one(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AGE", math.inf)  # on a busy machine, each claim would read the keys again

    other = sync_db.read_committed
    crawls(sync_db, large=200, **{f"site {n:02}": 20 for n in range(40)})
    analyze(sync_db, Crawl)
    small = {size: median_read(other, Crawl, size) for size in (1, 40)}
    done = {"site": "large", "status": "completed", "available_at": PAST, "finished_at": PAST, "topic": "a"}
    insert_many(sync_db, Crawl, {**done, "status": "available", "finished_at": None}, done)
    analyze(sync_db, Crawl)
    for size, amount in small.items():
        assert median_read(other, Crawl, size) <= 2 * amount + 100


@pytest.mark.requires("plans_empty_tables")
def test_a_claim_of_one_kind_uses_its_own_index(sync_db: Database) -> None:
    states = ("ready", *DUE)
    sync_db.insert(Message, rows(6_000, *states, kind="many") + rows(2_000, *states, kind="few"))
    analyze(sync_db, Message)
    adapter = adapter_for(sync_db.engine.dialect)
    for step, name in zip(picks(Message.__queue_spec__, [Message.kind == "few"], ()), ("claim", "due"), strict=True):
        for pick in step(2).parts:
            assert pick.index == f"ix_message_kind_{name}"
            with sync_db.engine.connect() as connection:
                plan = adapter.inspection.plan(connection, adapter.rows.select_for_claim(pick, Message.id))
            assert plan.indexes == {pick.index}
            assert not plan.sorted


# -- claims of several topics at once ---------------------------------------------------------------------------------

LISTED = ["a", "b"]


def _ids(tasks: Any) -> list[int]:
    return [task.id for task in tasks]


def mails(db: Database, number: int, **values: Any) -> None:
    given = {"available_at": PAST, "created_at": PAST, **values}
    db.insert(Mail, [{"topic": "abz"[n % 3], "priority": -(n % 2), **given} for n in range(number)])


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("values", [{}, {"status": "retryable", "attempt": 1}], ids=["ready", "due"])
def test_topics_are_claimed_in_the_order_of_the_queue(db: Database, lease: Any, values: dict[str, Any]) -> None:
    mails(db, 30, **values)
    with db.session() as actor:
        every = [task for task in actor.claim_many(Mail, limit=30) if task.topic in LISTED]
        expected = _ids(every)
        actor.rollback()
    with db.session() as actor:
        first = _ids(actor.claim_many(Mail, Mail.topic.in_(LISTED), limit=7, lease=lease))
        assert first == expected[:7]
        assert _ids(actor.claim_many(Mail, Mail.topic.in_(LISTED), limit=30, lease=lease)) == expected[7:]
        assert len(actor.claim_many(Mail, Mail.topic.in_(["z", "none"]), limit=30, lease=lease)) == 10
        actor.rollback()


@pytest.mark.requires("locks_rows")
def test_claims_skip_rows_that_others_hold(sync_db: Database) -> None:
    mails(sync_db, 90)
    first, second = contenders(sync_db)
    mine = _ids(first.claim_many(Mail, Mail.topic.in_(LISTED), limit=40))
    theirs = _ids(second.claim_many(Mail, Mail.topic.in_(LISTED), limit=10))
    rest = _ids(second.claim_many(Mail, limit=90))
    assert len({*mine, *theirs}) == 50
    assert len({*mine, *theirs, *rest}) == 90
    first.rollback()
    second.rollback()


def test_lists_of_any_content_and_length_work(db: Database) -> None:
    mails(db, 30)
    with db.session() as actor:
        for nothing in ([], ["none"]):
            assert not actor.claim_many(Mail, Mail.topic.in_(nothing), limit=9)
        many = [*LISTED, *LISTED, *map(str, range(600))]
        assert len(actor.claim_many(Mail, Mail.topic.in_(many), limit=9)) == 9
        actor.rollback()
