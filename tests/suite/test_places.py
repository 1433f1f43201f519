"""The places of tasks in batches and after others, where a transaction is rolled back or rows are missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select

from sqlqueue import ArgumentError, DuplicateTaskError
from tests.suite.test_flows import ends, work
from tests.support.flows import Note, Page, flow
from tests.support.harness import Database

__all__ = ["flow"]


def in_a_batch(session: Any, first: Page, second: Page, third: Note) -> None:
    with session.batch("gone") as batch:
        batch.add(first)
        batch.add(second, after=first)
        batch.then(third)


def after_others(session: Any, first: Page, second: Page, third: Note) -> None:
    session.enqueue(first)
    session.enqueue(second, after=[first, "gone"])
    session.enqueue(third, after="gone", timeout=timedelta(days=1))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("place", [in_a_batch, after_others])
def test_tasks_of_a_transaction_that_was_rolled_back_can_be_added_again(
    flow: Database, place: Callable[..., None], nested: bool
) -> None:
    """Elsewhere, and with a place or without one: what they had waited for was never stored."""
    tasks = Page(name="first"), Page(name="second"), Note(name="third")
    with flow.session() as session:
        with suppress(KeyError), session.begin_nested() if nested else nullcontext():
            place(session, *tasks)
            raise KeyError
        if not nested:
            session.rollback()
        assert [task.waits_for for task in tasks] == [None] * 3
        session.enqueue(tasks[0])
        session.add(tasks[1])
        with session.batch("other") as batch:
            batch.add(tasks[2])
        session.commit()
    assert set(work(flow)) == {"first", "second", "third"}
    assert flow.committed.progress(Page, "other").completed == 1


def test_tasks_that_a_flush_would_store_without_their_place_are_refused(flow: Database) -> None:
    def batch_of(session: Any, task: Page) -> None:
        with session.batch("batch") as batch:
            batch.add(Note(name="other"))
            batch.add(task)

    def after_event(session: Any, task: Page) -> None:
        session.enqueue(task, after="event")

    for place in (batch_of, after_event):
        with flow.begin() as session:
            task = Page(name=place.__name__)
            session.add(task)
            with pytest.raises(ArgumentError, match="do not add it before"):
                place(session, task)
        with flow.begin() as session, pytest.raises(DuplicateTaskError):
            place(session, session.scalar(select(Page).where(Page.name == place.__name__)))
    assert ends(flow) == {"batch_of": "available", "after_event": "available"}


def test_a_task_that_has_no_row_any_more_has_no_successors(flow: Database) -> None:
    """It may have failed before it was deleted, so none of them is started."""
    gone = Page(name="gone")
    with flow.begin() as session:
        session.enqueue(gone)
    with flow.begin() as session:
        session.execute(delete(Page))
    for after in (gone, [gone, "event"]):
        with flow.session() as session, pytest.raises(ArgumentError, match="has no row"):
            session.enqueue(Note(name="next"), after=after)
    assert ends(flow) == {}


def test_tasks_of_several_models_wait_for_what_an_iterator_names(flow: Database) -> None:
    flow.committed.enqueue([Page(name="page"), Note(name="note")], after=iter(["one", "two"]))
    flow.committed.open_event(Page, "one")
    assert ends(flow) == {"page": "waiting", "note": "waiting"}
    flow.committed.open_event(Page, "two")
    assert ends(flow) == {"page": "available", "note": "available"}
    for wrong in (5, Page, [], iter([])):
        with flow.session() as session, pytest.raises(ArgumentError, match="give tasks, or keys"):
            session.enqueue(Page(), after=wrong)


def test_a_task_that_waits_has_no_time_of_its_own(flow: Database) -> None:
    """What it waits for would replace it."""
    for values in ({"available_at": datetime.now(UTC) + timedelta(days=1)}, {"status": "scheduled"}):
        with (
            pytest.raises(ArgumentError, match="no time of their own"),
            flow.begin() as session,
            session.batch() as batch,
        ):
            batch.add(Page(name="second", **values), after=batch.add(Page(name="first")))
    assert ends(flow) == {}


def test_a_batch_is_no_event(flow: Database) -> None:
    with flow.begin() as session, session.batch("batch") as batch:
        batch.add(Page())
    assert flow.committed.event(Page, "batch") is None
    for key in (None, "a/b"):
        with pytest.raises(ArgumentError, match="key="):
            flow.committed.event(Page, key)


@pytest.mark.parametrize("model", [Page, Note])
def test_a_retry_leaves_what_it_would_bring_back_whose_key_is_taken(
    flow: Database, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed tasks run all the same, and so does everything else that was cancelled because of them."""
    with flow.begin() as session:
        session.enqueue(model(name="alone"))
        with session.batch("batch") as batch:
            first, other = batch.add(model(name="first")), batch.add(model(name="other"))
            batch.add(Note(name="taken", unique_key="taken"), after=first)
            batch.add(Note(name="twice", unique_key="twice"), after=first)
            batch.add(Note(name="next"), after=[first, other])
            batch.then(Page(name="end"), when="final")
    failing = ("alone", "first", "other")
    work(flow, *failing)
    flow.committed.enqueue(Note(name="twice too", unique_key="twice"), after=flow.committed.find(model)[0])
    flow.committed.enqueue(Note(name="newer", unique_key="taken"), after="event")
    assert ends(flow)["twice too"] == "cancelled"
    retried = flow.committed.retry(model)
    assert (int(retried), retried.taken) == (3, 0)
    assert "left flow_note" in caplog.text
    work(flow)
    found = ends(flow)
    assert [found[name] for name in (*failing, "next", "end")] == ["completed"] * 5
    assert found["taken"] == "cancelled"
    assert sorted([found["twice"], found["twice too"]]) == ["cancelled", "completed"]
    assert found["newer"] == "waiting"


def test_a_retry_counts_what_it_retries_beside_members_whose_key_is_taken(flow: Database) -> None:
    with flow.begin() as session:
        session.enqueue(Note(name="alone"))
        with session.batch("batch") as batch:
            batch.add(Note(name="taken", unique_key="key"))
    work(flow, "alone", "taken")
    flow.committed.enqueue(Note(name="newer", unique_key="key"))
    retried = flow.committed.retry(Note)
    assert (int(retried), retried.taken) == (1, 1)
    assert ends(flow) == {"alone": "available", "taken": "discarded", "newer": "available"}


def test_instances_show_what_has_become_of_their_tasks(flow: Database) -> None:
    with flow.begin() as session:
        waiter = Page(name="waiter")
        session.enqueue(waiter, after="event")
        with session.batch("batch") as batch:
            member = batch.add(Page(name="member"))
            callback, other = batch.then(Note(name="callback")), batch.then(Note(name="other"), when="failed")
        session.open_event(Page, "event")
        assert waiter.status == "available"
        session.discard(session.claim(Page, Page.name == "member"), "boom")
        session.advance(Page)
        assert (callback.status, other.status) == ("cancelled", "available")
        session.retry(Page)
        assert (member.status, callback.status) == ("available", "waiting")
