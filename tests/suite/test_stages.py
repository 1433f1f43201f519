"""Pipelines: one row goes from stage to stage, or one row leads to another; each step is one commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import RowMapping, select

from sqlqueue import ArgumentError, ClaimLostError
from sqlqueue.dialects import adapter_for
from sqlqueue.sql import picks
from sqlqueue.transaction import channel_of, subscribe
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Database
from tests.support.models import Film, Leaflet, Ledger, Listing, Task
from tests.support.rows import DUE, analyze, clock, count, end_leases, make_due, rows
from tests.support.workers import eventually

pytestmark = pytest.mark.sync_only


def films(db: Database) -> list[RowMapping]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Film.__table__).order_by(Film.id)).mappings())


def film(db: Database) -> RowMapping:
    (found,) = films(db)
    return found


@pytest.mark.parametrize("lease", ["default", None])
def test_a_task_moves_from_stage_to_stage(db: Database, lease: Any) -> None:
    """Each step is one commit together with its writes, or does not happen."""
    db.committed.add(Film(id=7))
    for number, (stage, following) in enumerate([("cut", "dub"), ("dub", "print"), ("print", "print")], start=1):
        for other in {"cut", "dub", "print"} - {stage}:
            assert db.committed.claim(Film, Film.stage == other) is None
        for commits in (False, True):
            with db.session() as actor:
                task = actor.claim(Film, Film.stage == stage, lease=lease)
                actor.add(Ledger(task_id=number))
                actor.complete(task)
                actor.commit() if commits else actor.rollback()
            assert count(db, Ledger) == number - 1 + commits
        assert film(db)["stage"] == following
    done = film(db)
    assert (done["status"], done["attempt"], done["finished_at"] is None) == ("completed", 3, False)


def test_workers_are_notified_of_the_next_stage(db: Database) -> None:
    db.insert(Film, [{}])
    heard: list[int] = []
    with db.session() as actor:
        actor.complete(actor.claim(Film))
        unsubscribe = subscribe([channel_of(Film.__queue_spec__)], lambda: heard.append(1))
        actor.commit()
    unsubscribe()
    assert heard == [1]


def test_a_task_moves_to_a_named_stage(db: Database) -> None:
    db.committed.add(Film(stage="dub"))
    for stage in ("cut", "print", "cut"):  # forward, back, and from the last
        db.committed.complete(db.committed.claim(Film), stage=stage)
        assert (film(db)["status"], film(db)["stage"]) == ("available", stage)
    with db.session() as actor, pytest.raises(ArgumentError, match="'show': the stages of Film are cut, dub, print"):
        actor.complete(actor.claim(Film), stage="show")
    db.insert(Task, [{}])
    with db.session() as actor, pytest.raises(ArgumentError, match="StageMixin"):
        actor.complete(actor.claim(Task), stage="cut")


def test_tasks_of_several_stages_are_completed_in_one_call(db: Database) -> None:
    db.committed.enqueue(Film, [{"stage": stage} for stage in ("cut", "dub", "print")])
    with db.begin() as actor:
        tasks = actor.claim_many(Film, limit=3)
        actor.complete(tasks)
    assert [(each["stage"], each["status"]) for each in films(db)] == [
        ("dub", "available"),
        ("print", "available"),
        ("print", "completed"),
    ]
    with db.begin() as actor:  # consumed tasks move on as well
        assert actor.consume(Film, Film.stage == "dub") is not None
        by_stage = actor.stats_by(Film, Film.stage)
    assert {stage: stats.unfinished for stage, stats in by_stage.items()} == {"print": 2}


def test_each_stage_has_all_attempts_and_its_own_backoff(db: Database) -> None:
    """Each stage has two attempts, the second after ten seconds."""
    db.committed.add(Film())
    for stage in ("cut", "dub"):
        task = db.committed.claim(Film)
        db.committed.fail(task, "no")
        failed = film(db)
        assert (failed["status"], failed["stage"]) == ("retryable", stage)
        assert timedelta(seconds=5) < failed["available_at"] - clock(db) <= timedelta(seconds=10)
        make_due(db, Film)
        if stage == "cut":
            db.committed.complete(db.committed.claim(Film))
            assert film(db)["error"] is None
    with db.begin() as actor:
        actor.fail(actor.claim(Film), "no")
    assert (film(db)["status"], film(db)["stage"], film(db)["attempt"]) == ("discarded", "dub", 4)
    assert db.committed.retry(Film) == 1  # it continues in the stage where it failed, with its first attempt
    with db.begin() as actor:
        actor.fail(actor.claim(Film), "no")
    failed = film(db)
    assert (failed["status"], failed["stage"]) == ("retryable", "dub")
    assert failed["available_at"] - clock(db) <= timedelta(seconds=10)


@pytest.mark.parametrize("end", ["complete", "fail", "discard", "release", "crash"])
def test_a_task_enqueued_again_begins_at_the_first_stage(db: Database, end: str) -> None:
    """This holds however the current run, the last attempt, ends."""
    db.committed.add(Film(id=1, stage="dub"))
    with db.begin() as actor:
        actor.fail(actor.claim(Film), "no", timedelta(0))
    task = db.committed.claim(Film)
    db.committed.enqueue(Film(id=1), on_conflict="rerun")
    if end in SETTLINGS:
        SETTLINGS[end](db.committed, task, **({"stage": "print"} if end == "complete" else {}))
    end_leases(db, Film)
    db.committed.rescue(Film)
    again = db.committed.claim(Film)
    assert (again.stage, again.attempt, again.attempts_before, again.max_attempts) == ("cut", 3, 2, 4)
    db.committed.complete(again)
    assert (film(db)["stage"], film(db)["status"]) == ("dub", "available")
    db.committed.enqueue(Film(id=1), on_conflict="rerun")  # it waits there
    assert (film(db)["stage"], film(db)["status"]) == ("cut", "available")


def test_a_run_that_is_not_repeated_continues_at_its_stage(db: Database) -> None:
    db.committed.add(Film(id=1, stage="dub"))
    task = db.committed.claim(Film)
    for row in ({"id": 1}, {"id": 1, "stage": "cut"}):
        db.committed.enqueue(Film, [row], on_conflict="replace")
    db.committed.complete(task)
    assert film(db)["stage"] == "print"
    # unless it waits; the first stage can be set
    db.committed.enqueue(Film, [{"id": 1, "stage": "dub"}], on_conflict="replace")
    task = db.committed.claim(Film, Film.stage == "dub")
    db.committed.enqueue(Film, [{"id": 1, "stage": "print"}], on_conflict="rerun")
    db.committed.complete(task)
    assert film(db)["stage"] == "print"


def test_tasks_that_end_early_keep_their_stage_and_error(db: Database) -> None:
    db.committed.enqueue(Film, [{}, {}, {"max_attempts": 1}])
    discarded, cancelled, _ = db.committed.claim_many(Film, limit=3)
    db.committed.discard(discarded, "no")
    db.committed.cancel(cancelled)
    end_leases(db, Film)
    assert db.committed.rescue(Film) == 1
    ended = [(each["status"], (each["error"] or "")[:7]) for each in films(db) if each["stage"] == "cut"]
    assert ended == [("discarded", "no"), ("cancelled", ""), ("discarded", "crashed")]


@pytest.mark.parametrize("lease", ["default", None])
def test_a_task_deleted_on_completion_is_deleted_after_its_last_stage(db: Database, lease: Any) -> None:
    db.committed.enqueue(Leaflet, [{}, {"stage": "post"}])
    for left in (1, 0):
        with db.begin() as actor:
            tasks = actor.claim_many(Leaflet, limit=2, lease=lease)
            actor.complete(tasks)
            assert sum(task in actor.sync_session for task in tasks) == left, "the instance of what is gone stays"
        assert count(db, Leaflet) == count(db, Leaflet, Leaflet.stage == "post") == left
    db.insert(Leaflet, [{"id": 7, "stage": "post"}])
    with db.begin() as actor:
        task = actor.consume(Leaflet)
        assert (task.id, task in actor.sync_session) == (7, False)
    assert count(db, Leaflet) == 0


@pytest.mark.requires("explains")
def test_a_claim_of_a_stage_has_an_index(sync_db: Database) -> None:
    states = ("ready", *DUE)
    sync_db.insert(Film, rows(6_000, *states, stage="cut") + rows(2_000, *states, stage="dub"))
    analyze(sync_db, Film)
    adapter, spec = adapter_for(sync_db.session_engine.dialect), Film.__queue_spec__
    with sync_db.engine.connect() as connection:
        for kind, step in zip(("claim", "due"), picks(spec, [Film.stage == "dub"], ()), strict=True):
            for part in step(10).parts:
                plan = adapter.inspection.plan(connection, adapter.rows.select_for_claim(part, *spec.primary_key))
                assert (plan.indexes, plan.sorted) == ({f"ix_film_stage_{kind}"}, 0)


@pytest.mark.parametrize("crashes", [False, True])
def test_completion_and_follow_up_are_one_commit(db: Database, crashes: bool) -> None:
    """Completing a task and enqueueing one of another model are one commit."""
    db.insert(Task, [{"id": 1}])
    working = db.variant().session()
    working.complete(working.claim(Task))
    working.enqueue(Listing(unique_key="of task 1"))
    if crashes:
        working.run(lambda session: session.invalidate())
        eventually(lambda: db.committed.claim(Task))  # the server has to notice first
    else:
        working.commit()
        assert db.committed.claim(Task) is None
    assert (db.committed.claim(Listing) is None) is crashes


def test_a_lost_claim_enqueues_no_follow_up(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    task = db.committed.claim(Task)
    end_leases(db)
    assert db.committed.claim(Task) is not None
    with db.session() as actor:
        actor.enqueue(Listing(unique_key="of task 1"))
        with pytest.raises(ClaimLostError):
            actor.complete(task)
    assert count(db, Listing) == 0


# -- the result of a task is stored with it, as JSON ------------------------------------------------------------------

RESULTS: list[Any] = [{"pages": [1, 2.5, None], "title": "Ünïcode"}, [], "text", 0, False, "null"]


def stored(db: Database) -> list[Any]:
    with db.begin() as actor:
        return list(actor.scalars(select(Film.result).order_by(Film.id)).all())


def test_a_result_is_kept(db: Database) -> None:
    db.committed.enqueue(Film, [{"stage": "print"} for _ in (*RESULTS, None)])
    with db.begin() as actor:
        tasks = actor.claim_many(Film, limit=100)
        for task, result in zip(tasks, RESULTS, strict=False):
            actor.complete(task, result)
        actor.complete(tasks[-1])
    assert [repr(each) for each in stored(db)] == [repr(each) for each in (*RESULTS, None)]


def test_a_result_of_a_stage_waits_for_the_next(db: Database) -> None:
    db.committed.enqueue(Film, [{}, {}])
    with db.begin() as actor:
        actor.complete(actor.claim_many(Film, limit=2), {"scenes": 3})
    with db.begin() as actor:
        task = actor.claim(Film, Film.stage == "dub")
        assert task.result == {"scenes": 3}
        actor.complete(task)
    assert stored(db) == [{"scenes": 3}] * 2


@pytest.mark.one_engine
def test_a_result_without_a_column_is_rejected(db: Database) -> None:
    db.insert(Task, [{}])
    with db.session() as actor:
        task = actor.claim(Task)
        with pytest.raises(ArgumentError, match="ResultMixin"):
            actor.complete(task, "done")
        actor.complete(task)  # nothing was sent
        actor.commit()
        assert actor.stats(Task)["completed"] == 1


def test_a_new_life_has_no_result_yet(db: Database) -> None:
    db.committed.enqueue(Film, [{"id": 1, "stage": "print"}])
    with db.begin() as actor:
        actor.complete(actor.claim(Film), {"reels": 3})
    db.committed.enqueue(Film, [{"id": 1}], on_conflict="rerun")
    with db.begin() as actor:
        (film,) = actor.scalars(select(Film)).all()
        assert (film.status, film.stage, film.result) == ("available", "cut", None)
