"""Keys are compared exactly; what engines would compare differently is refused, see test_bad_input."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from sqlqueue import ArgumentError, check
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Database
from tests.support.models import Crawl, Document, Film, Job, Listing, Mail, QueuePause, Task, Transfer, Visit
from tests.support.rows import count

DIFFERENT = ("straße", "strasse", "STRASSE", "é", "e", "E", "e\u0301", "e\u00a0", "ﬁ", "fi")
"""Texts that some collation considers equal."""


def test_topics(db: Database) -> None:
    db.committed.enqueue(Mail, [{"topic": topic, "subject": topic} for topic in DIFFERENT])
    for topic in DIFFERENT:
        assert [mail.subject for mail in db.committed.claim_many(Mail, Mail.topic == topic, limit=9)] == [topic]


def test_paused_topics(db: Database) -> None:
    with db.begin() as actor:
        assert [actor.pause(Mail, topic) for topic in DIFFERENT] == [True] * len(DIFFERENT)
        assert {pause.topic for pause in actor.paused(Mail)} == set(DIFFERENT)
    assert count(db, QueuePause) == len(DIFFERENT)


def test_stages_functions_and_unique_keys(db: Database) -> None:
    keys = [*DIFFERENT, "abC", "aBc", "\u65e5\u672c", "\u6771\u4eac"]
    with db.begin() as actor:
        actor.enqueue(Listing, [{"unique_key": key} for key in keys], on_conflict="ignore")
        actor.enqueue(Job, [{"task": "Send"}, {"task": "send"}])
        actor.enqueue(Film, [{"stage": "cut"}, {"stage": "CUT"}])
        assert sorted(actor.scalars(select(Listing.unique_key)).all()) == sorted(keys)
    with db.begin() as actor:
        assert [job.task for job in actor.claim_many(Job, Job.task == "send", limit=9)] == ["send"]
        assert [film.stage for film in actor.claim_many(Film, Film.stage == "cut", limit=9)] == ["cut"]
        assert len(actor.claim_many(Listing, Listing.unique_key == "e", limit=9)) == 1


def test_limit_keys(db: Database) -> None:
    db.committed.enqueue(Visit, [{"limit_key": key} for key in DIFFERENT for _ in range(3)])
    claimed = [visit.limit_key for visit in db.committed.claim_many(Visit, limit=99)]
    assert sorted(claimed) == sorted([*DIFFERENT, *DIFFERENT])


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("model", [Crawl, Transfer])
def test_keys_of_the_application_that_a_collation_equates(db: Database, model: Any, lease: Any) -> None:
    """Whether some keys are equal or none, each task is claimed once, and keys that are equal keep one order."""
    column: Any = spec_of(model).keyed_by
    weighted = ("GOLD", "gold")
    db.committed.enqueue(model, [{column.key: key} for _ in range(3) for key in (*weighted, *DIFFERENT)])
    with db.begin() as actor:
        number = len(actor.execute(select(column).distinct()).all())
        every = sorted(actor.scalars(select(model.id)).all())
    claimed = list[int]()
    for criteria in [[column.in_(weighted)], [column.in_(DIFFERENT)], []] * len(DIFFERENT):
        with db.begin() as actor:
            tasks = actor.claim_many(model, *criteria, limit=4 + len(claimed), lease=lease)
            assert len(tasks) <= number or model is Crawl
            claimed += [task.id for task in tasks]
            actor.complete(tasks)
    assert sorted(claimed) == every


@pytest.mark.parametrize("other", ["A", "a ", "\u00e4"])
@pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
def test_primary_keys_of_the_application(db: Database, on_conflict: str, other: str) -> None:
    """With any collation, both are tasks, or one is rejected, or `check` has reported that they are equal."""
    with db.engine.connect() as connection:
        noted = "inexact-primary-key" in {finding.code for finding in check(connection, Document)}
    with db.session() as actor:
        actor.enqueue(Document, [{"id": "a", "version": 1}])
        if other.endswith(" ") and db.case.drops_blanks:
            with pytest.raises(ArgumentError, match="id='a ' ends in a space"):
                actor.enqueue(Document, [{"id": other}], on_conflict=on_conflict)
            return
        actor.enqueue(Document, [{"id": other, "version": 2}], on_conflict=on_conflict)
        found = actor.scalars(select(Document.id)).all()
        assert noted or sorted(found) == sorted(["a", other])


def test_parts_of_keys_may_be_criteria(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Mail, [{"topic": "a b"}])
        assert len(actor.find(Mail, Mail.topic.startswith("a "))) == 1
        assert actor.find(Mail, Mail.topic == "") == []


def test_results_are_json(db: Database) -> None:
    db.committed.enqueue(Film, [{}])
    with db.begin() as actor:
        actor.complete(actor.claim(Film), {"a": (1, 2.5, None, "é", -(2**63))}, stage="print")
    (film,) = db.session().find(Film)
    assert film.result == {"a": [1, 2.5, None, "é", -(2**63)]}


def test_the_longest_duration_is_within_the_clock(db: Database) -> None:
    longest = timedelta(days=36_525)
    db.committed.enqueue(Task, [{}, {}, {}, {}])
    with db.begin() as actor:
        first, second, third = actor.claim_many(Task, limit=3, lease=longest)
        actor.heartbeat(first, longest)
        actor.fail(second, "no", retry_in=longest)
        actor.snooze(third, longest)
        actor.enqueue(Task, [{}], delay=longest)
        assert actor.prune(Task, longest) == 0


# -- keys that other programs have inserted ---------------------------------------------------------------------------


@pytest.mark.requires("blanks_count")
def test_keys_of_other_programs_stop_nothing(db: Database) -> None:
    """Once inserted, an empty key or one with a trailing blank works like any other."""
    db.execute(insert(Visit.__table__), [{"limit_key": "a "}, {"limit_key": "a"}, {"limit_key": ""}])
    db.execute(insert(Mail.__table__), [{"topic": ""}, {"topic": "a "}])
    with db.begin() as actor:
        visits, mails = actor.claim_many(Visit, limit=9), actor.claim_many(Mail, limit=9)
        assert {visit.limit_key for visit in visits} == {"a ", "a", ""}
        actor.complete(visits)
        actor.complete(mails)
