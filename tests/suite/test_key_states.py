"""What is seen of the keys of a queue, and pauses of single keys."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, delete, event, func, or_, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, with_loader_criteria

from sqlqueue import ArgumentError, Cause, Claim, KeyState, QueueMixin, QueueOptions, Rate
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.inspection import explain
from sqlqueue.operations import turns
from sqlqueue.operations.claiming import ClaimQuery
from sqlqueue.operations.control import not_paused
from sqlqueue.operations.upkeep import poll
from sqlqueue.queue.spec import spec_of
from tests.suite.test_plans import median_read, reading
from tests.suite.test_slots import sent
from tests.support.harness import Database
from tests.support.models import Crawl, Outgoing, QueuePause, Task, Transfer, Visit
from tests.support.rows import PAST, TOMORROW, analyze, insert_many, rows

HOUR = timedelta(hours=1)


def shown(found: list[KeyState], *names: str) -> dict[Any, Any]:
    return {each.key: tuple(getattr(each, name) for name in names) for each in found}


# -- the keys ----------------------------------------------------------------------------------------------------------


def test_keys_of_a_fair_queue(db: Database) -> None:
    db.insert(Crawl, [row for site in ("b", "gold", None) for row in rows(3, site=site)])
    db.insert(
        Crawl,
        [
            *rows(2, "scheduled", site="b"),
            *rows(1, site="gone"),
            *rows(1, status="completed", finished_at=PAST, site="done"),
        ],
    )
    db.insert(Crawl, rows(2, available_at=TOMORROW, site="early"))
    with db.begin() as session:
        session.claim_many(Crawl, Crawl.site == "b", limit=2)
        session.claim_many(Crawl, Crawl.site == "gone", limit=1)
    with db.begin() as session:
        found = session.keys(Crawl)
        assert shown(found, "ready", "running", "weight", "limit", "blocked_by") == {
            "b": (1, 2, 1.0, None, None),
            "early": (0, 0, 1.0, None, None),
            "gold": (3, 0, 3.0, None, None),
            None: (3, 0, 1.0, None, None),
        }
        assert [each.key for each in found] == ["b", "early", "gold", None]
        assert [each.key for each in session.keys(Crawl, first=2)] == ["b", "early"]
        assert [each.key for each in session.keys(Crawl, first=2, after="early")] == ["gold", None]
        assert [each.key for each in session.keys(Crawl, first=1, after="c")] == ["early"]
        assert session.keys(Crawl, after="z")[0].key is None


def test_keys_with_limits(db: Database) -> None:
    db.insert(Visit, [row for key in ("a", "b", None) for row in rows(4, limit_key=key)])
    with db.begin() as session:
        session.claim_many(Visit, Visit.limit_key.in_(["a"]), limit=4)
        session.claim(Visit, Visit.limit_key == "b")
        session.set_limit(Visit, "b", 5)
        found = session.keys(Visit)
    assert shown(found, "ready", "running", "limit", "is_full", "weight") == {
        "a": (2, 2, 2, True, None),
        "b": (3, 1, 5, False, None),
        None: (4, 0, None, False, None),
    }


def test_keys_in_sequence(db: Database) -> None:
    accounts = ("held", "late", "none", "runs", "waits")
    db.insert(Transfer, [row for name in accounts for row in rows(3, account=name)])
    db.insert(Transfer, rows(2))
    with db.begin() as session:
        session.discard(session.claim(Transfer, Transfer.account == "held"), "no")
        session.snooze(session.claim(Transfer, Transfer.account == "late"), HOUR)
        session.claim(Transfer, Transfer.account == "runs")
        session.cancel(Transfer, Transfer.account == "none")
    found = db.committed.keys(Transfer)
    assert shown(found, "ready", "running") == {
        "held": (2, 0),
        "late": (2, 0),
        "runs": (2, 1),
        "waits": (3, 0),
        None: (2, 0),
    }
    blocks: dict[Any, Any] = {each.key: each.blocked_by for each in found if each.blocked_by is not None}
    assert {key: block.status for key, block in blocks.items()} == {"held": "discarded", "late": "scheduled"}
    with db.begin() as session:
        for block in blocks.values():
            assert session.get_one(Transfer, block.identity).account in blocks
        assert blocks["held"].until is None
        session.retry(Transfer, Transfer.account == "held")
        assert {each.key for each in session.keys(Transfer) if each.blocked_by} == {"late"}


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit])
def test_as_much_is_read_of_a_large_backlog_as_of_a_small_one(db: Database, model: Any) -> None:
    column = spec_of(model).keyed_by.key

    def effort() -> int:
        analyze(db, model)
        with other.session() as session, reading(session, db.case) as read:
            assert session.keys(model, first=3)[1].ready == 1_000
        return read.amount

    other = db.read_committed
    db.insert(model, [row for key in ("a", "b", "c") for row in rows(1_200, **{column: key})])
    small = effort()
    done = {column: "b", "status": "completed", "available_at": PAST, "finished_at": PAST}
    later = {column: "b", "status": "scheduled", "available_at": TOMORROW}
    insert_many(db, model, {column: "b", "available_at": PAST}, done, later)
    assert effort() <= 2 * small + 2_000


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit, Outgoing])
def test_the_backlog_of_the_only_key_that_statistics_know_is_not_read(
    db: Database, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a planner, every other key looks as frequent as that one."""
    monkeypatch.setattr(turns, "AGE", math.inf)
    column, found = spec_of(model).keyed_by.key, list[dict[str, int]]()
    calls: dict[str, Any] = {
        "claim": lambda session: session.claim_many(model, limit=20),
        "keys": lambda session: session.keys(model, first=10),
        "why": lambda session: session.why(Claim(model, (last,), 0)),
    }
    if db.case.name == "sqlite":
        del calls["why"]  # it cannot be told which index to use, and has another one for tasks of the same time
    other, keys = db.read_committed, [*(f"key {n:02}" for n in range(40)), None]
    backlog = {column: "large", "available_at": PAST}
    for fill in (lambda: db.insert(model, [backlog] * 1_250), lambda: insert_many(db, model, backlog)):
        turns._rotations.clear()
        db.execute(delete(model))
        fill()
        analyze(db, model)
        db.insert(model, [row for key in keys for row in rows(20, **{column: key})])
        with db.begin() as session:
            last = session.scalar(select(func.max(model.id)).where(getattr(model, column) == "key 39"))
        amounts = dict[str, int]()
        for name, call in [*calls.items()] * 3:
            with other.session() as session, reading(session, db.case) as read:
                assert call(session)
            amounts[name] = min(read.amount, amounts.get(name, read.amount))
        found.append(amounts)
    few, many = found
    assert {name: (few[name], many[name]) for name in calls if many[name] > 2 * few[name] + 100} == {}


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit])
def test_searches_begin_at_the_first_column_of_an_index(db: Database, model: Any) -> None:
    """Not every version of PostgreSQL skips to the key if that column is not compared."""
    if db.case.name != "postgresql":
        pytest.skip("its plans do not show this")
    column = spec_of(model).keyed_by
    rows, pick = adapter_for(db.engine.dialect).rows, ClaimQuery(spec_of(model)).steps[0](1)
    for part in (pick.keys(column > "a", 1), rows.lane(pick, "a", 1)):
        with db.engine.connect() as connection:
            for way in ("seqscan", "bitmapscan", "sort"):  # those of an empty table
                connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
            plan = "\n".join(row[0] for row in explain(connection, "EXPLAIN", rows.select_candidates(part, column)))
        assert ("finished_at" if model is Transfer else "status") in plan.partition("Index Cond: ")[2], plan


def restricted(session: Any, model: Any, criterion: Any) -> None:
    """Add a criterion to all SELECTs of a session."""

    @event.listens_for(session.sync_session, "do_orm_execute")
    def add_criteria(state: Any) -> None:
        state.statement = state.statement.options(with_loader_criteria(model, criterion))


@pytest.mark.sync_only
def test_a_session_with_criteria_sees_its_keys(db: Database) -> None:
    db.insert(
        Crawl, [row for site, topic in (("a", "x"), ("b", "y"), ("b", "x")) for row in rows(2, site=site, topic=topic)]
    )
    db.insert(Crawl, rows(1, topic="y"))
    with db.begin() as session:
        restricted(session, Crawl, Crawl.topic == "y")
        assert shown(session.keys(Crawl), "ready") == {"b": (2,), None: (1,)}


@pytest.mark.sync_only
def test_a_session_with_criteria_sees_keys_with_limits(db: Database) -> None:
    db.insert(Visit, [row for key in ("a", "b", None) for row in rows(4, limit_key=key)])
    db.insert(Visit, [row for key in ("a", "c") for row in rows(3, limit_key=key, priority=1)])
    with db.begin() as session:
        session.claim_many(Visit, Visit.limit_key.in_(["a", "b"]), limit=3)
        restricted(session, Visit, Visit.priority == 0)
        found = shown(session.keys(Visit), "ready", "running", "limit")
        assert found == {"a": (2, 2, 2), "b": (3, 1, 2), None: (4, 0, None)}


@pytest.mark.parametrize(("option", "cause"), [("fair", Cause.SHARE), ("sequential", Cause.KEY_ORDER)])
def test_truth_values_are_keys(sync_db: Database, option: Any, cause: Cause) -> None:
    class Apart(DeclarativeBase):
        pass

    class Shown(QueueMixin, Apart):
        __tablename__ = "shown"
        __queue__ = QueueOptions(**{option: "is_paid"})

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        is_paid: Mapped[bool | None]

    Apart.metadata.create_all(sync_db.engine)
    try:
        with sync_db.begin() as session:
            session.enqueue(Shown, [{"is_paid": key} for key in (True, False, None)] * 2)
        with sync_db.begin() as session:
            assert shown(session.keys(Shown), "ready") == dict.fromkeys((False, True, None), (2,))
            last = session.scalars(select(Shown).order_by(Shown.id.desc()).where(Shown.is_paid.is_not(None))).first()
            assert [reason.cause for reason in session.why(last).reasons] == [cause]
        with sync_db.begin() as session:
            assert {task.is_paid for task in session.claim_many(Shown, limit=4)} == {False, True, None}
    finally:
        Apart.metadata.drop_all(sync_db.engine)


@pytest.mark.one_engine
@pytest.mark.sync_only
@pytest.mark.parametrize(
    ("model", "key", "said"),
    [
        (Task, "a", "Task has no keys"),
        (Crawl, None, "tasks without a key cannot be paused alone"),
        (Crawl, 7, "key=7 is not a value of crawl.site"),
        (Crawl, "x" * 400, "too long to be paused"),
        (Visit, "a\0", "is not a value of visit.limit_key"),
    ],
)
def test_keys_that_cannot_be_paused(db: Database, model: Any, key: Any, said: str) -> None:
    with db.begin() as session:
        for change in (session.pause, session.resume):
            with pytest.raises(ArgumentError, match=said):
                change(model, key=key)
        with pytest.raises(ArgumentError, match="pause one of them"):
            session.pause(Crawl, "topic", key="a")


@pytest.mark.one_engine
@pytest.mark.sync_only
def test_arguments_of_keys(db: Database) -> None:
    with db.begin() as session:
        with pytest.raises(ArgumentError, match="Task has no keys"):
            session.keys(Task)
        with pytest.raises(ArgumentError, match="first=0"):
            session.keys(Crawl, first=0)
        assert session.keys(Crawl) == []


# -- pauses of keys ----------------------------------------------------------------------------------------------------


def unpaused(db: Database, model: Any) -> Any:
    """Return the criteria of workers' claims."""
    with db.begin() as session:
        places = set(session.scalars(select(QueuePause.queue)))
    return not_paused(adapter_for(db.engine.dialect), spec_of(model), places) or ()


@pytest.mark.parametrize("model", [Crawl, Transfer, Visit, Outgoing])
def test_workers_claim_the_tasks_of_other_keys(db: Database, model: Any) -> None:
    """Available ones and due ones, in every kind of queue with keys; tasks without a key are not paused with one."""
    column, topic = spec_of(model).keyed_by.key, {"topic": "t"} if "topic" in spec_of(model).columns else {}
    for key in ("a", "b", None):
        db.insert(model, [*rows(1, **{column: key}, **topic), *rows(1, "retryable", **{column: key}, **topic)])
    with db.begin() as session:
        assert session.pause(model, key="a", reason="it is down")
        assert not session.pause(model, key="a")
        (pause,) = session.paused(model)
        assert (pause.key, pause.topic, pause.part) == ("a", None, "the key 'a'")
        assert {each.key for each in session.keys(model) if each.paused} == {"a"}
    where, once = unpaused(db, model), spec_of(model).sequence is not None
    with db.session() as session:
        found = [getattr(task, column) for task in session.claim_many(model, *where, limit=50)]
        assert sorted(map(str, found)) == ["None", "None", "b", *(["b"] if not once else [])]
        session.rollback()
    with db.begin() as session:
        (task,) = session.scalars(select(model).where(getattr(model, column) == "a", model.status == "available"))
        assert session.why(task).reasons[0].cause is Cause.PAUSED
        assert session.resume(model, key="a")
        assert not session.resume(model, key="a")
    assert unpaused(db, model) == ()


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit])
def test_claims_find_tasks_beyond_any_number_of_paused_keys(db: Database, model: Any) -> None:
    """With few statements, and without reading the tasks of these keys."""
    column, table, other = spec_of(model).keyed_by.key, model.__tablename__, db.read_committed
    paused = [f"a{number}" for number in range(600)]

    def cost() -> tuple[int, int]:
        analyze(db, model)
        turns._rotations.clear()
        with other.session() as session, reading(session, db.case) as read, sent() as cost:
            assert {getattr(task, column) for task in session.claim_many(model, *where, limit=2)} == {"z"}
        return cost["statements"], read.amount

    db.insert(model, [{column: key} for key in [*paused, "z"] for _ in range(1 if key == "z" else 20)])
    where = not_paused(adapter_for(db.engine.dialect), spec_of(model), {f"{table}={key}" for key in paused}) or ()
    few, small = cost()
    insert_many(db, model, {column: "a300"})
    many, large = cost()
    assert max(few, many) <= 15
    assert large <= 2 * small + 200


@pytest.mark.sync_only
def test_claims_find_tasks_beyond_many_keys_that_are_held(db: Database) -> None:
    held = [f"a{number:03}" for number in range(500)]
    db.insert(Transfer, [{"account": key, "status": "scheduled", "available_at": TOMORROW} for key in held])
    db.insert(Transfer, [{"account": key} for key in held * 8])
    db.insert(Transfer, [{"account": key} for key in ("x", "y", "z")])
    turns._rotations.clear()
    with db.session() as session, sent() as cost:
        assert sorted(task.account for task in session.claim_many(Transfer, limit=3)) == ["x", "y", "z"]
        session.rollback()
    assert cost["statements"] <= 20


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit])
def test_a_claim_reads_nothing_of_a_paused_backlog(db: Database, model: Any) -> None:
    column = spec_of(model).keyed_by.key

    def effort() -> int:
        analyze(db, model)
        turns._rotations.clear()
        with other.session() as session, reading(session, db.case) as read:
            found = session.claim_many(model, *where, limit=1 if model is Transfer else 2)
            assert {getattr(task, column) for task in found} == {"b"}
        return read.amount

    other = db.read_committed
    where = not_paused(adapter_for(db.engine.dialect), spec_of(model), {f"{model.__tablename__}=a"}) or ()
    db.insert(model, [row for key in ("a", "b") for row in rows(40, **{column: key})])
    small = effort()
    insert_many(db, model, {column: "a", "available_at": PAST, "priority": -1})
    assert effort() <= 2 * small + 4 * turns._SOME  # pages of rows of other keys


@pytest.mark.sync_only
@pytest.mark.parametrize("model", [Crawl, Transfer, Visit])
def test_a_claim_of_tasks_without_a_key_reads_no_others(db: Database, model: Any) -> None:
    key, other = getattr(model, spec_of(model).keyed_by.key), db.read_committed
    claims: dict[str, tuple[Any, set[str | None]]] = {
        "NULL": (key.is_(None), {None}),
        "NULL or listed": (or_(key.is_(None), key.in_(["b", "none"])), {None, "b"}),
        "equal or NULL": (or_(key == "b", key.is_(None)), {None, "b"}),
        "listed beside NULL": (key.in_(["b", None]), {"b"}),
    }

    def efforts() -> dict[str, int]:
        analyze(db, model)
        amounts = dict[str, int]()
        for name, (where, found) in claims.items():
            size = 1 if model is Transfer and found == {"b"} else 4
            turns._rotations.clear()
            with other.session() as session, reading(session, db.case) as read:
                tasks = session.claim_many(model, where, limit=size)
                assert {getattr(task, key.key) for task in tasks} <= found
                assert len(tasks) == size if model is not Visit else tasks
            amounts[name] = read.amount
        return amounts

    db.insert(model, [row for value in ("a", "b", None) for row in rows(40, **{key.key: value})])
    small = efforts()
    db.insert(model, rows(5_000, **{key.key: "a", "priority": -1, "created_at": PAST}))
    large = efforts()
    assert {name: (small[name], large[name]) for name in claims if large[name] > 2 * small[name] + 200} == {}


# -- claims of a key with many tasks -----------------------------------------------------------------------------------


@pytest.mark.sync_only
@pytest.mark.parametrize("way", ["fair", "order", "limit", "rate"])
def test_a_claim_of_a_key_reads_as_much_however_many_tasks_it_has(
    db: Database, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AGE", math.inf)
    model: Any = {"fair": Crawl, "order": Transfer}.get(way, Visit)
    column, size = spec_of(model).keyed_by.key, 1 if way == "order" else 20

    def effort() -> int:
        analyze(db, model)
        return median_read(other, model, size)

    other = db.read_committed
    with db.begin() as session:
        if way in ("limit", "rate"):
            session.set_limit(Visit, "a", 50 if way == "limit" else None)
        if way == "rate":
            session.set_rate(Visit, "a", Rate(50, per=HOUR))
    waiting = {column: "a", "available_at": PAST, "created_at": PAST}
    db.insert(model, [waiting] * 1_000)
    small = effort()
    insert_many(db, model, waiting)
    levels = size * (len(model.__table__.indexes) + 1)  # each row is written to each index, whose tree may be deeper
    assert effort() <= 1.1 * small + max(levels, 60)


@pytest.mark.sync_only
@pytest.mark.parametrize("way", ["limit", "rate", "paused", "paused, fair", "order"])
def test_tasks_that_may_not_start_are_not_read_by_claims_that_find_too_few(db: Database, way: str) -> None:
    """Such a claim looks for due tasks as well, and a worker then promotes them and asks when the next one is due."""
    model: Any = {"paused, fair": Crawl, "order": Transfer}.get(way, Visit)
    column, other = spec_of(model).keyed_by.key, db.read_committed
    where = not_paused(adapter_for(db.engine.dialect), spec_of(model), {f"{model.__tablename__}=a"}) or ()

    def claim(session: Any) -> None:
        found = session.claim_many(model, *(where if "paused" in way else ()), limit=10)
        assert {getattr(task, column) for task in found} == {"b"}

    def promote(session: Any) -> None:
        assert session.promote(model) == 0

    def ask(session: Any) -> None:
        session.run(lambda inner: poll(inner, model))

    def efforts() -> dict[str, int]:
        analyze(db, model)
        amounts = dict[str, int]()
        for call in (claim, promote, ask) * 3:
            turns._rotations.clear()
            with other.session() as session, reading(session, db.case) as read:
                call(session)
            amounts[call.__name__] = min(read.amount, amounts.get(call.__name__, read.amount))
        return amounts

    with db.begin() as session:
        if way == "limit":
            session.set_limit(Visit, "a", 1)
        if way == "rate":
            session.set_rate(Visit, "a", Rate(1, per=HOUR))
    db.insert(model, rows(1_000, **{column: "a", "created_at": PAST}))
    if way in ("limit", "rate", "order"):
        db.committed.claim(model)
    db.insert(model, rows(1, **{column: "b"}))
    small = efforts()
    db.insert(model, rows(9_000, **{column: "a", "created_at": PAST}))
    large = efforts()
    assert {name: (small[name], large[name]) for name in small if large[name] > 1.2 * small[name] + 100} == {}


@pytest.mark.sync_only
def test_why_reads_the_running_tasks_of_the_key_alone(db: Database) -> None:
    def effort() -> int:
        db.insert(Visit, rows(3, limit_key="a"))
        claimed = db.committed.claim_many(Visit, limit=3)
        analyze(db, Visit)
        with db.begin() as session:
            last = session.scalar(select(Visit.id).where(Visit.status == "available"))
        with other.session() as session, reading(session, db.case) as read:
            (reason, *_) = session.why(Claim(Visit, (last,), 0)).reasons
        assert [holder.identity for holder in reason.holders] == [(task.id,) for task in claimed]
        db.committed.cancel(Visit, Visit.limit_key == "a")
        return read.amount

    other = db.read_committed
    db.committed.set_limit(Visit, "a", 2)
    small = effort()
    insert_many(db, Visit, {"limit_key": "b", "status": "completed", "finished_at": PAST, "available_at": PAST})
    assert effort() <= 2 * small + 200
