"""Batches and workflows: what waits for the ends of others starts once, when it should, whoever ends them at once."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, String, delete, event, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    ArgumentError,
    BatchClosedError,
    Cause,
    ConfigurationError,
    DuplicateTaskError,
    FlowMixin,
    QueueMixin,
    QueueOptions,
    RecurringMixin,
    Worker,
    claim_of,
)
from sqlqueue.dialects import adapter_for
from sqlqueue.lifecycle.kind import moment_text
from sqlqueue.operations import latches as latches_module
from sqlqueue.operations.latches import Latches
from sqlqueue.sql import utcnow
from sqlqueue.testing import drain
from sqlqueue.transaction import Access
from tests.suite import children
from tests.support.flows import Latch, Note, Page, flow
from tests.support.harness import Database
from tests.support.processes import Processes
from tests.support.workers import eventually

__all__ = ["flow"]

ROUNDS = int(os.environ.get("SQLQUEUE_TEST_ROUNDS", "5"))
"""How often two transactions meet at a barrier; raise it after changes of locks."""
MEMBERS = int(os.environ.get("SQLQUEUE_TEST_KILLED_MEMBERS", "200"))
"""The number of tasks that processes settle which are killed meanwhile."""


def ends(db: Database, *models: Any) -> dict[str, str]:
    with db.engine.connect() as connection:
        rows = [row for model in models or (Page, Note) for row in connection.execute(select(model.name, model.status))]
    return dict(map(tuple, rows))


def work(db: Database, *failing: str, models: Iterable[Any] = (Page, Note)) -> list[str]:
    """Run tasks in a loop until none is left; return their names in order."""
    ran: list[str] = []
    while True:
        started = db.committed.advance(Page)
        with db.begin() as session:
            task = next(filter(None, (session.claim(model) for model in models)), None)
            if task is None:
                if not started:
                    return ran
                continue
            ran.append(task.name)
            if task.name in failing:
                session.discard(task, "boom")
            else:
                session.complete(task)


def until_success(db: Database, change: Callable[[], Any], session: Any) -> None:
    """Change something and commit, again while other transactions conflict."""
    while True:
        try:
            change()
            session.commit()
        except DBAPIError as error:
            session.rollback()
            if not adapter_for(db.engine.dialect).connections.is_temporary(error):
                raise
        else:
            return


def at_once(*actions: Callable[[threading.Barrier], Any]) -> list[Any]:
    """Call these in threads, with a barrier at which they meet; return their results."""
    barrier = threading.Barrier(len(actions), timeout=60)
    with ThreadPoolExecutor(len(actions)) as threads:
        return [each.result() for each in [threads.submit(action, barrier) for action in actions]]


def opens(session: Any, *keys: str) -> int:
    """Open these latches, as a look does that has found them ripe."""
    return latches(session).open(keys).opened


def latches(session: Any) -> Latches:
    return Latches.of(session, Page.__queue_spec__, Access.SKIP)


def three_pages(db: Database, key: str) -> None:
    with db.begin() as session, session.batch(key) as batch:
        batch.add(Page, [{"name": "a"}, {"name": "b"}])
        batch.add(Page(name="c"))
        for when in ("completed", "failed", "final"):
            batch.then(Note(name=when), when=when)


def test_callbacks_of_a_batch(flow: Database) -> None:
    three_pages(flow, "import")
    assert set(work(flow)[:3]) == {"a", "b", "c"}
    found = ends(flow, Note)
    assert found == {"completed": "completed", "failed": "cancelled", "final": "completed"}
    with flow.begin() as session:
        latch = session.get(Latch, "import")
        assert (latch.completed, latch.discarded, latch.broken_at) == (3, 0, None)
        skipped = session.scalar(select(Note).where(Note.name == "failed"))
        assert (skipped.error, skipped.waits_when) == (None, "skipped")
        (reason,) = session.why(skipped).reasons
        assert reason.text.endswith(": it was not needed, as nothing that it waited for has failed")
    assert flow.committed.run(opens, "import") == 0, "it has opened twice"


def test_callbacks_of_a_batch_with_a_failure_and_after_its_retry(flow: Database) -> None:
    three_pages(flow, "import")
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "a"), "boom")
    flow.committed.advance(Page)
    assert ends(flow, Note) == {"completed": "cancelled", "failed": "available", "final": "waiting"}
    with flow.begin() as session:
        error = session.scalar(select(Note.error).where(Note.name == "completed"))
        number = session.scalar(select(Page.id).where(Page.name == "a"))
    assert error == f"not run: Page {number} was discarded"
    assert Counter(work(flow)) == Counter({"b": 1, "c": 1, "failed": 1, "final": 1})
    assert flow.committed.retry(Page) == 1
    assert ends(flow, Note) == {"completed": "waiting", "failed": "completed", "final": "completed"}
    assert Counter(work(flow)) == Counter({"a": 1, "completed": 1})


@pytest.mark.one_engine
def test_batches_without_members_and_with_wrong_ones(flow: Database) -> None:
    with flow.begin() as session, session.batch("empty") as batch:
        batch.then(Note(name="x"))
        batch.then(Note(name="y"), when="failed")
    assert ends(flow) == {"x": "available", "y": "cancelled"}
    with (
        pytest.raises(DuplicateTaskError, match="'empty' already"),
        flow.begin() as session,
        session.batch("empty") as batch,
    ):
        batch.add(Page(name="z"))
    with flow.begin() as session, session.batch() as batch:
        page = batch.add(Page())
        callback = batch.then(Note(name="callback"))
        for wrong in (Page(), callback):
            with pytest.raises(ArgumentError, match="added to this batch before"):
                batch.add(Page(), after=wrong)
        with pytest.raises(ArgumentError, match="give one of"):
            batch.add(Page(), when="ended")
        with pytest.raises(ArgumentError, match="give after="):
            batch.add(Page(), when="failed")
        with pytest.raises(ArgumentError, match="in this batch already"):
            batch.add(page)
        with pytest.raises(ArgumentError, match="no status and no time"):
            batch.add(Page, [{"status": "scheduled"}])
    with pytest.raises(ArgumentError, match="has ended"):
        batch.add(Page())
    for key in ("a/b", "", "x" * 181):
        with pytest.raises(ArgumentError), flow.begin() as session, session.batch(key):
            pass
    with pytest.raises(ArgumentError, match="name a model"), flow.begin() as session, session.batch("nothing"):
        pass
    with flow.begin() as session, session.batch() as batch:
        session.add(Page(name="plain"))
    assert work(flow) == ["", "plain", "x", "callback"]


def test_models_that_cannot_have_batches() -> None:
    class Lone(DeclarativeBase):
        pass

    class Single(FlowMixin, Lone):
        __tablename__ = "single"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    from sqlqueue import QueueSession

    with (
        pytest.raises(ConfigurationError, match=r"class QueueLatch\(LatchMixin, Base\)"),
        QueueSession() as session,
        session.batch() as batch,
    ):
        batch.add(Single())
    with pytest.raises(ConfigurationError, match="never ends"):
        type("Again", (FlowMixin, RecurringMixin, Lone), {"__tablename__": "again"})
    with pytest.raises(ConfigurationError, match="would delete the ends"):
        type("Gone", (FlowMixin, Lone), {"__tablename__": "gone", "__queue__": QueueOptions(on_complete="delete")})


LEVELS = {
    "postgresql": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "mysql": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "mariadb": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
}


def rounds(flow: Database) -> Iterator[tuple[Database, str]]:
    """Yield a database at each isolation level, and a key, some times; delete all rows in between."""
    for level in LEVELS.get(flow.case.name, ("SERIALIZABLE",)):
        engine = flow.variant(isolation_level=level)
        for number in range(ROUNDS):
            yield engine, f"{level} {number}"
            for model in (Note, Page, Latch):
                flow.execute(delete(model))


@pytest.mark.sync_only
def test_two_last_members_that_end_at_once(flow: Database) -> None:
    """Each transaction looks only after its commit, as workers do."""
    for db, key in rounds(flow):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page, [{"name": "a"}, {"name": "b"}])
            batch.then(Note(name=key))

        def end(barrier: threading.Barrier, db: Database = db) -> int:
            with db.session() as session:
                task = session.claim(Page)
                session.commit()
                barrier.wait()
                until_success(db, lambda: session.complete(claim_of(task)), session)
            return flow.committed.advance(Page)

        assert sum(at_once(end, end)) == 1, key
        assert ends(flow, Note) == {key: "available"}


@pytest.mark.sync_only
def test_what_is_added_while_the_last_member_ends_is_counted_and_released_once(flow: Database) -> None:
    """One adds a member, one a successor of the last member; the one that ends this looks after its commit."""
    added_in_time = 0
    for db, key in rounds(flow):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page(name="last"))
            batch.then(Note(name="end"))

        def end(barrier: threading.Barrier, db: Database = db) -> list[str]:
            with db.session() as session:
                task = session.claim(Page)
                session.commit()
                barrier.wait()
                until_success(db, lambda: session.complete(claim_of(task)), session)
            return work(flow)

        def add(barrier: threading.Barrier, db: Database = db, key: str = key) -> bool:
            barrier.wait()
            time.sleep(random.random() * 0.03)
            with db.session() as session:
                try:
                    until_success(db, lambda: session.enqueue(Page(name="more"), into=key), session)
                except BatchClosedError:
                    return False
            return True

        def follow(barrier: threading.Barrier, db: Database = db) -> None:
            barrier.wait()
            with db.session() as session:

                def enqueue() -> None:
                    session.enqueue(Note(name="next"), after=session.scalar(select(Page).where(Page.name == "last")))

                until_success(db, enqueue, session)

        ran, is_added, _ = at_once(end, add, follow)
        ran += work(flow)
        added_in_time += is_added
        assert sorted(ran) == sorted(["end", "next", *(["more"] if is_added else [])]), (key, ran)
        assert not is_added or ran.index("more") < ran.index("end"), "the batch has ended over a member"
    print(f"\n{flow.case.name}: {added_in_time} members came in time")


@pytest.mark.sync_only
def test_members_that_are_not_committed_yet_keep_their_batch_closed(flow: Database) -> None:
    if flow.case.one_writer:
        pytest.skip("nothing looks while another transaction writes")
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="a"))
        batch.then(Note(name="end"))
    with flow.begin() as session:
        session.complete(session.claim(Page))
    with flow.begin() as session:
        session.enqueue(Page(name="b"), into="import")
        flow.committed.enqueue(Page(name="c"), into="import")  # adders do not wait for each other
        with flow.begin() as other:
            assert opens(other.sync_session, "import") == 0, "it has opened over a member"
    assert Counter(work(flow)) == Counter(["b", "c", "end"])


@pytest.mark.sync_only
def test_a_member_that_comes_before_a_look_has_the_lock_keeps_its_batch_closed(
    flow: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flow.case.one_writer:
        pytest.skip("a look has the lock of all tables")
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="a"))
    with flow.begin() as session:
        session.complete(session.claim(Page))
    lock = Latches._lock

    def add_first(self: Latches, *ids: Any, **how: Any) -> Any:
        monkeypatch.undo()
        flow.committed.enqueue(Page(name="b"), into="import")
        return lock(self, *ids, **how)

    with flow.begin() as session:
        monkeypatch.setattr(Latches, "_lock", add_first)
        assert opens(session.sync_session, "import") == 0, "it has counted before it had the lock"


@pytest.mark.one_engine
def test_a_layer_takes_one_latch(flow: Database) -> None:
    with flow.begin() as session, session.batch("layers") as batch:
        last: Any = ()
        for _ in range(4):
            last = [batch.add(Page(), after=last) for _ in range(4)]
    with flow.begin() as session:
        assert session.scalar(select(func.count()).select_from(Latch)) == 1 + 3, (
            "the batch, and all layers but the last"
        )


@pytest.mark.one_engine
def test_a_look_that_has_not_seen_a_failure_before_sees_it_when_it_opens(flow: Database) -> None:
    with flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page, [])
        outer.add(Page(name="other"))
        outer.then(Note(name="alarm"), when="failed")
    with flow.begin() as session, session.batch("import", into="outer") as batch:
        batch.add(Page, [{"name": "a"}, {"name": "b"}])
        for when in ("completed", "failed", "final"):
            batch.then(Note(name=when), when=when)
    with flow.begin() as session, session.batch("plain", into="outer") as batch:
        batch.add(Page, [{"name": "c"}, {"name": "unfinished"}])
    with flow.begin() as session:
        for name in "abc":
            session.discard(session.claim(Page, Page.name == name), "boom")
    with flow.begin() as session:
        assert session.run(opens, "import") == 1
        session.run(lambda inner: latches(inner).break_({"plain"}))
    available = dict.fromkeys(("failed", "final", "alarm"), "available")
    both = {"import", "outer"}
    for name, broken in (("a", {"plain", *both}), ("b", {"plain", *both}), ("c", {"plain", "outer"}), (None, set())):
        with flow.engine.connect() as connection:
            assert set(connection.scalars(select(Latch.id).where(Latch.broken_at.is_not(None)))) == broken
        completed = "cancelled" if "import" in broken else "waiting"
        assert ends(flow, Note) == {"completed": completed, **available}
        assert flow.committed.retry(Page, Page.name == name) == (name is not None)


@pytest.mark.one_engine
def test_one_look_does_all_that_follows(flow: Database) -> None:
    """Other looks would find the rest at their sweeps only."""
    with flow.begin() as session, session.batch("skips") as batch:
        first = batch.add(Page(name="first"))
        skipped = batch.add(Page(name="skipped"), after=first, when="failed")
        batch.add(Page(name="last"), after=skipped, when="final")
    with flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page, [])
        outer.then(Note(name="alarm"), when="failed")
        outer.add(Note(name="other"))
    with flow.begin() as session, session.batch("inner", into="outer") as inner:
        bad = inner.add(Note(name="bad"))
        inner.add(Note(name="next"), after=inner.add(Note(name="never"), after=bad))
    with flow.begin() as session:
        session.complete(session.claim(Page))
        session.discard(session.claim(Note, Note.name == "bad"), "boom")
    with flow.begin() as session:
        session.run(opens, "skips/0")
        assert session.run(lambda inner: latches(inner).break_({"inner/0"}))
    assert ends(flow, Page) == {"first": "completed", "skipped": "cancelled", "last": "available"}
    cancelled = dict.fromkeys(("never", "next"), "cancelled")
    assert ends(flow, Note) == {"alarm": "available", "other": "available", "bad": "discarded", **cancelled}
    with flow.begin() as session, session.batch("late") as late:
        late.add(Page, [{}])
        late.then(Note(name="late alarm"), when="failed")
    flow.committed.enqueue(Page(name="cancelled at once"), after="inner", into="late")
    assert ends(flow, Note)["late alarm"] == "available"
    for key in ("above", "over", "beside"):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page, [])
            batch.add(Note(name="unfinished"))
            batch.then(Note(name=f"alarm {key}"), when="failed")
    for key, outer in (("nested", "over"), ("single", None)):
        with flow.begin() as session, session.batch(key, into=outer) as batch:
            batch.add(Page(name=key))
    flow.committed.enqueue(Note(name="not run"), after="single", into="beside")
    with flow.begin() as session, session.batch("unseen", into="above") as unseen:
        failed = unseen.add(Page(name="failed"))
        unfinished = unseen.add(Page(name="too"))
        never = unseen.add(Page(name="not run"), after=failed)
        unseen.add(Note(name="instead"), after=[never, unfinished], when="failed")
        unseen.add(Page(name="not run either"), after=never)
    with flow.begin() as session:
        for name in ("failed", "nested"):
            session.discard(session.claim(Page, Page.name == name), "boom")
        session.cancel(session.claim(Page, Page.name == "single"))
    for key, number in (("unseen/0", 3), ("nested", 1), ("single", 1)):
        assert flow.committed.run(opens, key) == number
    assert ends(flow, Page)["not run either"] == "cancelled"
    found = ends(flow, Note)
    available = {name for name, status in found.items() if status == "available"}
    assert available > {"instead", "alarm above", "alarm over", "alarm beside"}


@pytest.mark.sync_only
def test_two_looks_at_once_leave_to_a_later_one_what_neither_sees(flow: Database) -> None:
    with flow.begin() as session, session.batch("outer") as batch:
        batch.add(Page())
        batch.then(Note(name="end"))
    for key in ("one", "two"):
        with flow.begin() as session, session.batch(key, into="outer") as batch:
            batch.add(Page())
    with flow.begin() as session:
        session.complete(session.claim_many(Page, limit=3))
    with flow.begin() as session:
        assert opens(session.sync_session, "outer") == 0, "it has opened over batches"
        first = latches(session.sync_session).open(["one"])
        if flow.case.one_writer:
            session.commit()
        with flow.begin() as other:
            second = latches(other.sync_session).open(["one", "two"])
    if flow.case.one_writer:
        assert second.opened == 2
    else:
        assert (first.opened, second.opened, second.left) == (1, 1, {"one", "outer"})
        with flow.begin() as session:
            assert opens(session.sync_session, *first.left) == 1
    assert ends(flow, Note) == {"end": "available"}


@pytest.mark.sync_only
def test_looks_at_all_latches_find_only_those_that_have_something_to_do(flow: Database) -> None:
    """Otherwise the others, of which there may be many more, would cost time, and hide these."""

    def found() -> tuple[set[str], set[str], set[str]]:
        with flow.begin() as session:
            own = latches(session.sync_session)
            return {*own.ripe(None)}, own.failing(None), {*own.late(None)}

    flow.committed.enqueue(Note(name="waits"), after="event")
    for key in ("completed", "broken"):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page(name=key))
    assert sorted(work(flow, "broken")) == ["broken", "completed"]
    flow.committed.rerun(Page, Page.name == "completed")
    assert work(flow, "completed") == ["completed"]
    with flow.begin() as session, session.batch("unfinished") as batch:
        batch.add(Page, [{"name": "bad"}, {"name": "unfinished"}])
    with flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page, [])
        outer.add(Page(name="of outer"))
    with flow.begin() as session, session.batch("inner", into="outer") as inner:
        inner.add(Page(name="inner"))
    assert found() == (set(), set(), set())
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "bad"), "boom")
        session.complete(session.claim(Page, Page.name == "of outer"))
    assert found() == (set(), {"unfinished"}, set())
    flow.committed.advance(Page)
    assert found() == (set(), set(), set())
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "inner"), "boom")
    assert found() == ({"inner"}, {"inner"}, set())
    with flow.begin() as session:
        opens(session.sync_session, "inner")
    flow.execute(update(Latch).where(Latch.id == "outer").values(opened_at=None, broken_at=None))
    assert found() == ({"outer"}, {"outer"}, set()), "as if it had been locked when the inner one opened"


@pytest.mark.sync_only
def test_a_failure_reaches_a_batch_that_was_locked_when_it_happened(flow: Database) -> None:
    if flow.case.one_writer:
        pytest.skip("nothing looks while another transaction writes")
    with flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page, [])
        outer.add(Page(name="other"))
        outer.then(Note(name="alarm"), when="failed")
    with flow.begin() as session, session.batch("inner", into="outer") as inner:
        inner.add(Page, [{"name": "bad", "priority": -1}, {"name": "good"}])
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "bad"), "boom")
    with flow.begin() as session:
        session.enqueue(Page(name="more"), into="outer")
        flow.committed.advance(Page)
    assert ends(flow, Note) == {"alarm": "waiting"}
    flow.committed.advance(Page)
    assert ends(flow, Note) == {"alarm": "available"}


@pytest.mark.sync_only
def test_a_retry_whose_latch_is_still_closed_keeps_it_closed(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last member has just failed, and a look has found the latch ripe when the member is retried."""
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="a"))
        batch.then(Note(name="end"), when="final")
    with flow.begin() as session:
        session.discard(session.claim(Page), "boom")
    reopen, seen = Latches.reopen, list[int]()

    def look_first(self: Latches, ids: Any) -> None:
        if not flow.case.one_writer:
            with flow.begin() as other:
                seen.append(opens(other.sync_session, "import"))
        reopen(self, ids)

    monkeypatch.setattr(Latches, "reopen", look_first)
    assert flow.committed.retry(Page) == 1
    assert not any(seen), "the retry has not locked the latch before it changed the member"
    with flow.begin() as other:
        assert opens(other.sync_session, "import") == 0, "the look has not counted again under the lock"
    assert work(flow) == ["a", "end"]


@pytest.mark.sync_only
def test_a_retry_does_not_wait_for_members_that_are_being_settled(flow: Database) -> None:
    if flow.case.one_writer:
        pytest.skip("nothing writes while another transaction settles")
    three_pages(flow, "import")
    with flow.begin() as session:
        session.discard(session.claim(Page, Page.name == "a"), "boom")
    flow.committed.advance(Page)
    with flow.begin() as session:
        session.complete(session.claim(Page, Page.name == "b"))
        with flow.variant(isolation_level="REPEATABLE READ").begin() as other:
            other.scalar(select(func.count()).select_from(Page))
            assert other.retry(Page, Page.name == "a") == 1


@pytest.mark.sync_only
def test_a_retry_leaves_a_task_alone_that_gets_a_latch_of_its_own_meanwhile(
    flow: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the lock of another one, it would not let wait again what its end has cancelled."""
    if flow.case.one_writer:
        pytest.skip("nothing writes while a transaction retries")
    with flow.begin() as session, session.batch("import") as batch:
        page = batch.add(Page(name="a"))
    with flow.begin() as session:
        session.fail(session.claim(Page), "boom")
    hold = Latches.hold

    def hold_later(self: Latches, ids: Any) -> Any:
        monkeypatch.undo()
        flow.committed.enqueue(Note(name="next"), after=page)
        work(flow, "a")
        return hold(self, ids)

    monkeypatch.setattr(Latches, "hold", hold_later)
    assert flow.variant(isolation_level="READ COMMITTED").committed.retry(Page) == 0
    assert ends(flow) == {"a": "discarded", "next": "cancelled"}
    assert flow.committed.retry(Page) == 1
    assert ends(flow) == {"a": "available", "next": "waiting"}


def later(flow: Database, meanwhile: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    """Change something in a transaction whose snapshot is older than what has happened meanwhile."""
    db, todo = flow.variant(isolation_level="REPEATABLE READ"), [meanwhile]
    with db.session() as session:

        def both() -> None:
            session.scalar(select(func.count()).select_from(Page))
            if todo:
                todo.pop()()
            change(session)

        until_success(db, both, session)


@pytest.mark.sync_only
def test_changes_in_transactions_with_older_snapshots(flow: Database) -> None:
    """What others have committed since counts, or the transaction fails, and is called again."""
    if flow.case.one_writer:
        pytest.skip("a transaction with an older snapshot cannot write")
    three_pages(flow, "import")
    with flow.begin() as session:
        for name in "ab":
            session.discard(session.claim(Page, Page.name == name), "boom")
    flow.committed.advance(Page)
    assert ends(flow, Note)["completed"] == "cancelled"
    later(
        flow,
        lambda: flow.committed.retry(Page, Page.name == "a"),
        lambda session: session.retry(Page, Page.name == "b"),
    )
    assert ends(flow, Note)["completed"] == "waiting"

    flow.committed.enqueue(Note(name="first"), after="event")
    later(
        flow,
        lambda: flow.committed.enqueue(Note(name="second"), after="event"),
        lambda session: session.open_event(Page, "event"),
    )
    flow.committed.advance(Page)  # PostgreSQL's snapshot has not shown the second one, and no change conflicted
    found = ends(flow, Note)
    assert found["first"] == found["second"] == "available"

    def wait(session: Any) -> None:
        try:
            session.enqueue(Note(name="third"), after="another")
        except ArgumentError:
            assert flow.case.name == "postgresql"  # whose snapshot never shows the event
            session.rollback()
            session.enqueue(Note(name="third"), after="another")

    later(flow, lambda: flow.committed.open_event(Page, "another"), wait)
    assert ends(flow, Note)["third"] == "available"


@pytest.mark.sync_only
def test_batches_above_in_transactions_with_older_snapshots(flow: Database) -> None:
    if flow.case.one_writer:
        pytest.skip("a transaction with an older snapshot cannot write")
    with flow.begin() as session, session.batch("broken") as batch:
        batch.add(Page(name="other"))
        batch.then(Note(name="both"))
    for name in ("one", "two"):
        with flow.begin() as session, session.batch(name, into="broken") as batch:
            batch.add(Page(name=name))
        with flow.begin() as session:
            session.discard(session.claim(Page, Page.name == name), "boom")
    flow.committed.advance(Page)
    assert ends(flow, Note)["both"] == "cancelled"
    later(
        flow,
        lambda: flow.committed.retry(Page, Page.name == "one"),
        lambda session: session.retry(Page, Page.name == "two"),
    )
    assert ends(flow, Note)["both"] == "waiting"

    with flow.begin() as session, session.batch("outer") as batch:
        batch.add(Page(name="ended"))
        batch.then(Note(name="outer end"))
    with flow.begin() as session:
        session.complete(session.claim(Page, Page.name == "ended"))

    def nest(session: Any) -> None:
        with session.batch(into="outer") as inner:
            inner.then(Note(name="inner failed"), when="failed")

    later(flow, lambda: flow.committed.enqueue(Page(name="unseen"), into="outer"), nest)
    flow.committed.advance(Page)
    assert ends(flow, Note)["outer end"] == "waiting"


@pytest.mark.sync_only
def test_a_task_that_starts_at_its_deadline_while_a_look_would_end_it_goes_on(
    flow: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flow.case.one_writer:
        pytest.skip("nothing claims while a look writes")
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="a"))
        batch.then(Note(name="alarm"), when="failed")
    flow.execute(update(Note).values(available_at=utcnow()))
    with flow.begin() as session:
        session.complete(session.claim(Page))
    read = Latches.read

    def claim_then(self: Latches, spec: Any, statement: Any) -> Any:
        found = read(self, spec, statement)
        if found and spec is Note.__queue_spec__:
            monkeypatch.undo()
            assert flow.committed.claim(Note) is not None
        return found

    with flow.variant(isolation_level="READ COMMITTED").begin() as session:
        monkeypatch.setattr(Latches, "read", claim_then)
        assert opens(session.sync_session, "import") == 1
    assert ends(flow, Note) == {"alarm": "running"}


@pytest.mark.sync_only
def test_members_of_unfinished_batches_are_not_pruned(flow: Database) -> None:
    three_pages(flow, "import")
    with flow.begin() as session:
        session.complete(session.claim(Page))
    assert flow.committed.prune(Page, timedelta(0)) == 0
    work(flow)
    assert flow.committed.prune_batches(Page) == 0
    assert flow.committed.prune(Page, timedelta(0)) == 3
    assert flow.committed.progress(Page, "import").completed == 3
    with flow.begin() as session, session.batch("chain") as batch:
        batch.add(Page(name="next"), after=batch.add(Page(name="first")))
    with flow.begin() as session:
        session.complete(session.claim(Page))
    assert flow.committed.advance(Page) == 1
    assert flow.committed.prune_batches(Page, timedelta(0)) == 1, "the parts of a batch are counted when it ends"


@pytest.mark.sync_only
def test_a_batch_that_a_retry_reopens_meanwhile_is_not_pruned(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if flow.case.one_writer:
        pytest.skip("no retry while another transaction writes")
    for key in ("kept", "pruned"):
        with flow.begin() as session, session.batch(key) as batch:
            batch.add(Page(name=key))
    work(flow, "kept")
    parts, todo = latches_module._parts, [lambda: flow.committed.retry(Page)]

    def later_parts(ids: Iterable[str]) -> Iterator[list[str]]:
        if todo:
            todo.pop()()
        return parts(ids)

    monkeypatch.setattr(latches_module, "_parts", later_parts)
    assert flow.variant(isolation_level="READ COMMITTED").committed.prune_batches(Page, timedelta(0)) == 1
    assert flow.committed.progress(Page, "pruned") is None
    assert flow.committed.progress(Page, "kept").unfinished == 1


@pytest.mark.sync_only
def test_one_call_of_advance_opens_all_that_has_ended(flow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many latches one statement returns."""
    for number in range(5):
        with flow.begin() as session, session.batch() as batch:
            batch.add(Page())
            batch.then(Note(name=f"{number}"))
    flow.committed.complete(flow.committed.claim_many(Page, limit=5))
    monkeypatch.setattr(latches_module, "MOST", 2)
    assert flow.committed.advance(Page) == 5
    assert set(ends(flow, Note).values()) == {"available"}


@pytest.mark.sync_only
def test_a_process_that_lacks_a_model_opens_nothing(flow: Database) -> None:
    three_pages(flow, "import")
    flow.execute(update(Latch).values(waiters=["flow_note", "another_table"]))
    assert work(flow, "a") == ["a", "b", "c"]
    assert set(ends(flow, Note).values()) == {"waiting"}


class Before(DeclarativeBase):
    pass


class PageBefore(QueueMixin, Before):
    """The model as a process maps it that was deployed before the mixin."""

    __tablename__ = "flow_page"
    __queue__ = QueueOptions(max_attempts=2)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


@pytest.mark.sync_only
def test_processes_of_a_version_without_batches_settle_members_and_start_nothing(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="last"), after=[batch.add(Page(name=name)) for name in "abc"])
        batch.then(Note(name="end"))

    def work_before() -> list[str]:
        ran: list[str] = []
        while True:
            with flow.begin() as session:
                if (task := session.claim(PageBefore)) is None:
                    return ran
                session.complete(task)
                ran.append(task.name)

    assert sorted(work_before()) == ["a", "b", "c"]
    flow.committed.advance(Page)
    assert work_before() == ["last"]
    assert work(flow) == ["end"]


@pytest.mark.one_engine
def test_what_was_not_needed_waits_again_if_a_member_fails_when_it_runs_again(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="a"))
        batch.then(Note(name="alarm"), when="failed")
    assert work(flow) == ["a"]
    flow.committed.rerun(Page)
    assert work(flow, "a") == ["a"]
    with flow.begin() as session:
        session.run(lambda inner: latches(inner).break_({"import"}))
        assert session.get(Latch, "import").broken_at is None, "a failure after the end is none of the batch"
    assert ends(flow, Note) == {"alarm": "cancelled"}
    flow.committed.retry(Page)
    assert ends(flow, Note) == {"alarm": "waiting"}
    assert work(flow, "a") == ["a", "alarm"]


@pytest.mark.one_engine
def test_a_retry_revives_neither_what_has_run_nor_what_another_failure_has_cancelled(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        two = batch.add(Page, [{"name": "a"}, {"name": "b"}])
        batch.add(Note(name="alone"), after=two)
        batch.add(Note(name="with another"), after=[two, batch.add(Page(name="c"))])
        early = batch.add(Note(name="early"), after=two)
    flow.execute(update(Note).where(Note.id == early.id).values(available_at=utcnow()))  # its deadline
    with flow.begin() as session:
        session.cancel(session.claim(Note))
    flow.committed.enqueue(Page(name="d"))
    assert Counter(work(flow, "a", "b", "d")) == Counter("abcd")
    assert set(ends(flow, Note).values()) == {"cancelled"}
    assert flow.committed.retry(Page, Page.name.in_(["a", "d"])) == 2
    assert set(ends(flow, Note).values()) == {"cancelled"}
    assert flow.committed.retry(Page, Page.name == "b") == 1
    assert ends(flow, Note) == {"alone": "waiting", "with another": "waiting", "early": "cancelled"}
    assert flow.committed.claim(Note) is None
    with flow.begin() as session:
        assert session.scalar(select(func.count(Note.finished_at))) == 1


@pytest.mark.one_engine
def test_a_task_that_was_not_needed_and_runs_again_counts_as_it_ends(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page(name="b"), after=batch.add(Page(name="a")), when="failed")
        batch.add(Page(name="c", priority=-1))
    with flow.begin() as session:
        session.complete(session.claim(Page, Page.name == "a"))
    flow.committed.advance(Page)
    assert flow.committed.progress(Page, "import").skipped == 1
    flow.committed.rerun(Page, Page.name == "b")
    assert sorted(work(flow)) == ["b", "c"]
    found = flow.committed.progress(Page, "import")
    assert (found.completed, found.skipped) == (3, 0)
    assert all(dict(node.states) == {"completed": 1} for node in flow.committed.graph(Page, "import").nodes)


@pytest.mark.one_engine
def test_a_user_who_cancels_a_waiting_task_takes_it_out(flow: Database) -> None:
    three_pages(flow, "import")
    assert flow.committed.cancel(Note, Note.name == "completed") == 1
    work(flow, "a")
    flow.committed.retry(Page)
    assert work(flow) == ["a"]
    assert ends(flow, Note)["completed"] == "cancelled"


@pytest.mark.one_engine
def test_members_that_are_cancelled_or_expire_end_their_batch(flow: Database) -> None:
    three_pages(flow, "import")
    flow.committed.enqueue(Note(name="push"), into="import")
    flow.execute(update(Note).where(Note.name == "push").values(expires_at=Note.created_at))
    flow.committed.cancel(Page, Page.name == "a")
    flow.committed.advance(Page)
    flow.committed.enqueue(Note(name="too"), after="import", when="final")
    assert ends(flow, Note)["too"] == "waiting"
    assert Counter(work(flow)) == Counter(["b", "c", "failed", "final", "too"])
    assert ends(flow, Note) == {
        **dict.fromkeys(("failed", "final", "too"), "completed"),
        **dict.fromkeys(("completed", "push"), "cancelled"),
    }
    with flow.begin() as session:
        latch = session.get(Latch, "import")
        assert (latch.completed, latch.cancelled) == (2, 2)
    flow.committed.enqueue(Note(name="late"), after="import", when="final")
    assert ends(flow, Note)["late"] == "available"


@pytest.mark.sync_only
def test_a_drain_goes_on_after_a_member_that_has_expired(flow: Database) -> None:
    """Also if no claim finds anything else to run."""
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Note, [{"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}])
        batch.then(Page(name="end"), when="final")
    worker = Worker(flow.sessions())
    worker.handler(Page)(lambda task: None)
    worker.handler(Note)(lambda task: None)
    assert drain(worker) == {"completed": 1}
    assert ends(flow) == {"": "cancelled", "end": "completed"}


@pytest.mark.sync_only
def test_callbacks_start_once_whatever_is_killed(flow: Database, processes: Processes) -> None:
    """Four processes settle members and look at latches; those that are about to commit are killed, now and then.

    Only those to be killed settle until four have been, so that the members last."""
    number, killed = MEMBERS, Counter[str]()
    with flow.begin() as session, session.batch("import") as batch:
        batch.add(Page, [{"name": f"{n}"} for n in range(number)])
        for when in ("completed", "failed", "final"):
            batch.then(Note(name=when), when=when)
    running = {processes.spawn(children.run_flow, flow.url, dies): dies for dies in ("settling", "looking") * 2}
    while running:
        child = processes.first(list(running), timeout=60 + number)
        dies = running.pop(child)
        if child.has_arrived:
            child.kill()
            killed[dies] += 1
            another = dies if killed[dies] < 4 + number // 1_000 else "no more"
            running[processes.spawn(children.run_flow, flow.url, another)] = another
    assert killed["settling"] >= 4
    with flow.begin() as session:
        latch = session.get(Latch, "import")
        counts = Counter(session.scalars(select(Page.status)))
        assert counts == {"completed": number - 3, "discarded": 3}
        assert (latch.completed, latch.discarded, latch.cancelled) == (number - 3, 3, 0)
        assert [
            (note.name, note.status, note.attempt) for note in session.scalars(select(Note).order_by(Note.name))
        ] == [("completed", "cancelled", 0), ("failed", "completed", 1), ("final", "completed", 1)]


def test_why_a_task_waits_for_an_event(flow: Database) -> None:
    with flow.begin() as session:
        for timeout in (None, timedelta(hours=1)):
            session.enqueue(note := Note(), after="label:7", timeout=timeout)
            (reason,) = session.why(note).reasons
            until = f", or until {moment_text(reason.until)}" if timeout else ""
            assert reason.text == f"it waits for the event 'label:7' to be opened{until}: it is not open yet"


@pytest.mark.one_engine
def test_why_a_task_waits(flow: Database) -> None:
    three_pages(flow, "import")
    with flow.begin() as session:
        note = session.scalar(select(Note).where(Note.name == "completed"))
        (reason,) = session.why(note).reasons
        (first, *_) = session.find(Page)
        assert (reason.cause, reason.text) == (
            Cause.WAITS,
            f"it waits for 'import' to be completed: 3 of 3 tasks are unfinished; Page {first.id} is available",
        )
        session.enqueue(Note(name="both"), after=[first, "label:7"])
    with flow.begin() as session:  # claims come first in a transaction
        session.discard(session.claim(Page, Page.id == first.id), "boom")
        (reason,) = session.why(session.scalar(select(Note).where(Note.name == "both"))).reasons
        assert reason.text == (
            f"it waits for other tasks to be completed: the event 'label:7' is not open; Page {first.id} is discarded"
        )
    flow.committed.advance(Page)
    with flow.begin() as session:
        (reason,) = session.why(session.scalar(select(Note).where(Note.name == "both"))).reasons
    assert reason.text.endswith(f": not run: Page {first.id} was discarded")


# -- members and waiters that are added later, and events --------------------------------------------------------------


def test_a_running_member_adds_members(flow: Database) -> None:
    with flow.begin() as session, session.batch("crawl") as batch:
        last = batch.add(Page(name="after"), after=batch.add(Page(name="first")))
        batch.then(Note(name="end"))
    assert last.status == "waiting"
    with flow.begin() as session:
        task = session.claim(Page)
        session.enqueue(Page, [{"name": "found"}], into=task)
        session.enqueue(Page(name="more"), into="crawl")
        session.complete(task)
    assert flow.committed.advance(Page) == 0
    ran = work(flow)
    assert ran.index("found") < ran.index("after") < ran.index("end")
    assert ran.index("more") < ran.index("end")
    with pytest.raises(BatchClosedError, match="'crawl' has ended"), flow.begin() as session:
        session.enqueue(Page(), into="crawl")


def test_an_unsealed_batch_ends_once_it_is_sealed(flow: Database) -> None:
    with flow.begin() as session, session.batch("import", sealed=False) as batch:
        batch.then(Note(name="end"))
        batch.then(Note(name="failed"), when="failed")
    flow.committed.enqueue(Page(name="a"), into="import")
    assert work(flow) == ["a"]
    flow.committed.enqueue(Page, [{"name": "b"}, {"name": "c"}], into="import")
    assert work(flow, "b") == ["b", "c", "failed"], "a failure is told before the batch is sealed"
    assert flow.committed.retry(Page) == 1
    assert work(flow) == ["b"]
    with flow.begin() as session:
        session.enqueue(Page(name="d"), into="import")
        assert session.seal(Page, "import") is True
        assert session.seal(Page, "import") is False
    assert work(flow) == ["d", "end"]


@pytest.mark.one_engine
def test_batches_that_cannot_be_unsealed_sealed_or_joined(flow: Database) -> None:
    for wrong in ({"key": None}, {"key": "empty"}):
        with pytest.raises(ArgumentError), flow.begin() as session, session.batch(**wrong, sealed=False):
            pass
    flow.committed.enqueue(Note(name="x"), after="event")
    for key in ("unknown", "event"):
        with pytest.raises(ArgumentError, match="there is no"):
            flow.committed.seal(Page, key)
        with pytest.raises(ArgumentError, match="there is no"):
            flow.committed.enqueue(Page(), into=key)
    with flow.begin() as session, session.batch("unsealed", sealed=False) as batch:
        batch.add(Page, [])
    with pytest.raises(ArgumentError, match="is a batch"):
        flow.committed.open_event(Page, "unsealed")


def test_nested_batches_end_with_their_callbacks(flow: Database) -> None:
    with flow.begin() as session, session.batch("outer") as outer:
        first = outer.add(Page(name="first"))
        outer.add(Page(name="after"), after=first)
        outer.then(Note(name="outer end"))
    with flow.begin() as session:
        task = session.claim(Page)
        with session.batch("inner", into=task) as inner:
            inner.add(Page(name="in"), after=inner.add(Page(name="into")))
            inner.then(Page(name="inner end"))
            inner.then(Page(name="inner failed"), when="failed")
        with session.batch(into="inner") as empty:
            empty.then(Page(name="empty"))
        session.complete(task)
    ran = work(flow)
    assert ran[-2:] == ["after", "outer end"]
    assert ran.index("into") < ran.index("in") < ran.index("inner end")
    assert ran.index("empty") < ran.index("inner end")
    with flow.begin() as session:
        latch = session.get(Latch, "outer")
        assert (latch.completed, latch.skipped, latch.broken_at) == (6, 1, None)
    with pytest.raises(BatchClosedError), flow.begin() as session, session.batch(into="outer") as late:
        late.add(Page())


@pytest.mark.one_engine
def test_a_failure_in_a_nested_batch_breaks_the_outer_one_until_it_is_retried(flow: Database) -> None:
    with flow.begin() as session, session.batch("outer") as outer:
        outer.add(Page, [])
        outer.then(Note(name="end"))
        outer.then(Note(name="alarm"), when="failed")
        outer.add(Page(name="other"))
    with flow.begin() as session, session.batch("inner", into="outer") as inner:
        inner.add(Page(name="bad"))
        inner.then(Note(name="inner end"))
    assert Counter(work(flow, "bad")) == Counter(["other", "bad", "alarm"])
    flow.committed.retry(Page)
    assert work(flow) == ["bad", "inner end", "end"]
    assert flow.committed.progress(Page, "outer").completed == 3


def test_stored_tasks_get_successors_before_and_after_their_end(flow: Database) -> None:
    for name in ("good", "bad"):
        flow.committed.enqueue(Page(name=name))
    for moment in ("before", "after"):
        with flow.begin() as session:
            for page in session.scalars(select(Page).where(Page.name.in_(["good", "bad"]))).all():
                for when in ("completed", "failed", "final"):
                    session.enqueue(Note(name=f"{page.name} {moment} {when}"), after=page, when=when)
                assert page.reports_to.startswith("/"), "it reports to a latch of its own"
        if moment == "before":
            work(flow, "bad", models=[Page])
    with flow.begin() as session:
        good = session.scalar(select(Page).where(Page.name == "good"))
        bad = session.scalar(select(Page).where(Page.name == "bad"))
        session.enqueue(Note(name="both"), after=[good, "unknown"])
        session.enqueue(Note(name="ended"), after=[good, bad], when="final")
        session.enqueue(Note(name="one failed"), after=[bad, "unknown"], when="failed")
        session.enqueue(Note(name="needs both"), after=[good, bad])
    found = ends(flow, Note)
    for moment in ("before", "after"):
        assert found[f"good {moment} completed"] == found[f"bad {moment} failed"] == "available"
        assert found[f"good {moment} final"] == found[f"bad {moment} final"] == "available"
        assert found[f"good {moment} failed"] == found[f"bad {moment} completed"] == "cancelled"
    assert found["both"] == "waiting"
    assert found["ended"] == found["one failed"] == "available"
    assert found["needs both"] == "cancelled"


def test_events_open_once_before_or_after_tasks_wait_for_them(flow: Database) -> None:
    flow.committed.enqueue(Note(name="early"), after="label:7")
    flow.committed.enqueue(Note, [{"name": "both"}], after=["label:7", "paid:7"])
    assert flow.committed.advance(Page) == 0
    assert flow.committed.open_event(Page, "label:7", {"url": 1}) is True
    assert flow.committed.open_event(Page, "label:7", {"url": 2}) is False
    flow.committed.enqueue(Note(name="late"), after="label:7")
    assert ends(flow, Note) == {"early": "available", "both": "waiting", "late": "available"}
    assert flow.committed.open_event(Page, "paid:7") is True
    assert ends(flow, Note)["both"] == "available"
    assert flow.committed.event(Page, "label:7").payload == {"url": 1}
    assert flow.committed.event(Page, "unknown") is None


@pytest.mark.sync_only
def test_a_waiter_that_comes_while_an_event_opens_is_not_forgotten(flow: Database) -> None:
    for number in range(ROUNDS):
        key = f"event {number}"

        def wait(barrier: threading.Barrier, key: str = key) -> None:
            barrier.wait()
            flow.committed.enqueue(Note(name=key), after=key)

        def open_it(barrier: threading.Barrier, key: str = key) -> None:
            barrier.wait()
            with suppress(DBAPIError):  # it has lost the race for a new key
                flow.committed.open_event(Page, key)

        at_once(wait, open_it)
        flow.committed.open_event(Page, key)
        assert ends(flow, Note)[key] == "available"
    if not flow.case.one_writer:
        flow.committed.enqueue(Note(name="first"), after="contested")
        won: list[bool] = []
        late = threading.Thread(target=lambda: won.append(flow.committed.open_event(Page, "contested", "late")))
        with flow.begin() as session:
            assert session.open_event(Page, "contested", "first")
            late.start()
            late.join(0.3)
        late.join()
        assert (won, flow.committed.event(Page, "contested").payload) == ([False], "first")
        flow.committed.enqueue(Note(name="first"), after="last event")
        opener = threading.Thread(target=flow.committed.open_event, args=(Page, "last event"))
        with flow.begin() as session:
            session.enqueue(Note(name="second"), after="last event")
            opener.start()
            opener.join(0.3)
            assert opener.is_alive(), "the event has opened over a waiter that is not committed"
        opener.join()
        assert ends(flow, Note)["second"] == "available"


@pytest.mark.one_engine
def test_tasks_start_at_their_deadline_and_wrong_places_are_refused(flow: Database) -> None:
    flow.committed.enqueue(Note(name="x"), after="never", timeout=timedelta(seconds=0.01))
    flow.committed.enqueue(Note(name="y"), after="never", timeout=timedelta(days=1))
    eventually(lambda: work(flow) == ["x"])
    assert flow.committed.event(Page, "never").opened_at is None
    with flow.begin() as session, session.batch("batch") as batch:
        batch.add(Page(name="z"))
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("give after=", {"timeout": timedelta(1)}),
        ("give after=", {"when": "failed"}),
        ("give one of", {"after": "a", "when": "ended"}),
        ("give tasks, or keys", {"after": []}),
        ("no such batch", {"into": "unknown"}),
        ("cannot be combined", {"after": "a", "delay": timedelta(1)}),
        ("has no slash", {"after": "a/b"}),
    ]
    for text, arguments in wrong:
        with pytest.raises(ArgumentError, match=text), flow.begin() as session:
            session.enqueue(Page(), **arguments)
    with pytest.raises(ArgumentError, match="is a batch"), flow.begin() as session:
        session.open_event(Page, "batch")


def test_members_that_would_wait_for_their_own_batch_are_refused(flow: Database) -> None:
    with flow.begin() as session, session.batch("outer") as outer:
        first = outer.add(Page(name="first"))
        second = outer.add(Page(name="second"), after=first)
        callback = outer.then(Note(name="callback"))
    with flow.begin() as session, session.batch("inner", into="outer") as inner:
        inner.add(Page(name="in inner"))
        inner.add(Note(name="gate"), after=inner.add(Page(name="before the gate")))
    flow.committed.enqueue(later := Page(name="later"), after=["outer", "event"])
    after_later = Note(name="after later")
    flow.committed.enqueue(after_later, after=later)
    wrong: list[tuple[Any, Any]] = [
        ("outer", "outer"),
        ("outer", "inner"),
        (callback, "outer"),
        (callback, "inner"),
        (["event", later], "outer"),
        (after_later, "inner"),
        (second, first),
    ]
    with flow.engine.connect() as connection:
        before = set(connection.scalars(select(Latch.id)))
    for after, into in wrong:
        with pytest.raises(ArgumentError, match="it would never start"), flow.begin() as session:
            session.enqueue(Note(name="never"), after=after, into=into)
    with flow.engine.connect() as connection:
        assert set(connection.scalars(select(Latch.id))) == before
    right: list[tuple[Any, Any]] = [(second, "outer"), (first, first), ("event", "inner"), (first, "inner")]
    for after, into in right:
        flow.committed.enqueue(Page(name="more"), after=after, into=into)
    work(flow)
    flow.committed.open_event(Page, "event")
    work(flow)
    assert set(ends(flow).values()) == {"completed"}
    with flow.begin() as session, session.batch("last") as last:
        third = last.add(Page(name="third"))
        fourth = last.add(Page(name="fourth"), after=third)
    assert flow.committed.cancel(Page, Page.name == "fourth") == 1
    flow.committed.enqueue(Page(name="instead"), after=fourth, into=third, when="failed")
    work(flow)
    assert {ends(flow)[name] for name in ("third", "instead")} == {"completed"}


@pytest.mark.sync_only
def test_the_place_of_a_task_is_read_once(flow: Database) -> None:
    with flow.begin() as session, session.batch("import") as batch:
        first = batch.add(Page(name="first"))
    flow.committed.enqueue(second := Page(name="second"))
    sent = list[str]()

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(flow.session_engine, "before_cursor_execute", note)
    with flow.begin() as session:
        session.enqueue(Note(name="last"), after=second, into=first)
    event.remove(flow.session_engine, "before_cursor_execute", note)
    reads = [each for each in sent if each.startswith("SELECT flow_page.reports_to FROM flow_page WHERE flow_page.id")]
    assert len(reads) == 2, "of the first task, whose place it is, and of the second, for which it waits"


# -- graphs, compared with a model in Python --------------------------------------------------------------------------


def expected(graph: dict[str, tuple[list[str], str]], failing: set[str]) -> dict[str, str]:
    """Return how each task ends; `graph` names the predecessors and the condition of each, in order."""
    found: dict[str, str] = {}
    for name, (after, when) in graph.items():
        failed = any(found[each] in ("discarded", "cancelled") for each in after)
        runs = not after or when == "final" or failed == (when == "failed")
        ended = "discarded" if name in failing else "completed"
        found[name] = ended if runs else "skipped" if when == "failed" else "cancelled"
    return found


def ended(db: Database) -> dict[str, str]:
    with db.engine.connect() as connection:
        rows = connection.execute(select(Page.name, Page.status, Page.waits_when)).all()
    return {name: "skipped" if when == "skipped" else status for name, status, when in rows}


def test_random_graphs_end_as_a_model_says_and_so_after_a_retry(flow: Database) -> None:
    rng = random.Random(7)
    for number in range(ROUNDS):
        names = [f"{number}.{each}" for each in range(rng.randrange(2, 12))]
        graph = {
            name: (rng.sample(names[:n], min(n, rng.choice((0, 1, 1, 2, 3)))), rng.choice(_WHENS))
            for n, name in enumerate(names)
        }
        with flow.begin() as session, session.batch(f"graph {number}") as batch:
            tasks: dict[str, Any] = {}
            for name, (after, when) in graph.items():
                waits = {"after": [tasks[each] for each in after], "when": when} if after else {}
                tasks[name] = batch.add(Page(name=name), **waits)
        with flow.begin() as session:
            keys = session.scalars(select(Latch.id).where(Latch.opened_at.is_(None))).all()
        assert flow.committed.run(opens, *keys) == 0, graph
        failing = set(rng.sample(names, len(names) // 3))
        work(flow, *failing, models=[Page])
        told = {name: status for name, status in ended(flow).items() if name in graph}
        assert told == expected(graph, failing), (graph, failing)
        progress = flow.committed.progress(Page, f"graph {number}")
        counted = {name: getattr(progress, name) for name in ("completed", "discarded", "cancelled", "skipped")}
        assert Counter(counted) == Counter(told.values()), (graph, failing)
        # what a failure has started stays; the rest is as if there had been none
        started = {name for name in names if graph[name][1] == "failed" and told[name] in ("completed", "discarded")}
        flow.committed.retry(Page, Page.name.in_(names))
        work(flow, models=[Page])
        again = expected(graph, set())
        told = {name: status for name, status in ended(flow).items() if name in graph}
        for name in names:
            if graph[name][1] != "failed" or not graph[name][0]:
                assert told[name] in ("completed", again[name]), (name, graph, failing)
        assert not started & {name for name, status in told.items() if status == "skipped"}
        assert "waiting" not in told.values()


_WHENS = ("completed", "completed", "failed", "final")
