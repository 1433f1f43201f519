"""Keys are compared exactly, and keys that engines compare differently are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from sqlqueue import ArgumentError, LinearBackoff, QueueOptions, Worker, check
from tests.support.harness import Actor, Database
from tests.support.models import Document, Film, Job, Listing, Mail, Outgoing, QueuePause, Seat, Task, Visit
from tests.support.rows import count

DIFFERENT = ("straße", "strasse", "STRASSE", "é", "e", "E", "e\u0301", "e\u00a0", "ﬁ", "fi")
"""Texts that some collation considers equal."""
SURROGATE, NUL = "a\udc80", "a\0b"


# -- what is compared -------------------------------------------------------------------------------------------------


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
    with db.begin() as actor:
        actor.enqueue(Listing, [{"unique_key": key} for key in DIFFERENT])
        actor.enqueue(Job, [{"task": "Send"}, {"task": "send"}])
        actor.enqueue(Film, [{"stage": "cut"}, {"stage": "CUT"}])
    with db.begin() as actor:
        assert [job.task for job in actor.claim_many(Job, Job.task == "send", limit=9)] == ["send"]
        assert [film.stage for film in actor.claim_many(Film, Film.stage == "cut", limit=9)] == ["cut"]
        assert len(actor.claim_many(Listing, Listing.unique_key == "e", limit=9)) == 1


def test_limit_keys(db: Database) -> None:
    db.committed.enqueue(Visit, [{"limit_key": key} for key in DIFFERENT for _ in range(3)])
    claimed = [visit.limit_key for visit in db.committed.claim_many(Visit, limit=99)]
    assert sorted(claimed) == sorted([*DIFFERENT, *DIFFERENT])


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


# -- what is refused --------------------------------------------------------------------------------------------------

WRONG_KEYS = {
    "empty": "",
    "a blank at the end": "a ",
    "a surrogate": SURROGATE,
    "NUL": NUL,
    "a number": 7,
    "bytes": b"a",
    "too long": "x" * 256,
}
KEYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "topic": (Mail, {}),
    "unique_key": (Listing, {}),
    "limit_key": (Visit, {}),
    "stage": (Film, {}),
    "task": (Job, {}),
    "message_key": (Outgoing, {"payload": {}}),
}


@pytest.mark.parametrize("kind", WRONG_KEYS)
@pytest.mark.parametrize("name", KEYS)
def test_keys_that_engines_differ_about(db: Database, name: str, kind: str) -> None:
    model, others = KEYS[name]
    row = {name: WRONG_KEYS[kind], **others}
    with db.session() as actor:
        for enqueue in (
            lambda: actor.enqueue(model, [row]),
            lambda: actor.enqueue(model(**row)),
            lambda: actor.enqueue(model, [row | {"id": 1}], on_conflict="replace"),
        ):
            with pytest.raises(ArgumentError, match=name):
                enqueue()
            actor.rollback()
        actor.add(task := model(**{**others, name: "cut"}))
        actor.flush()
        setattr(task, name, WRONG_KEYS[kind])
        with pytest.raises(ArgumentError, match=name):
            actor.flush()
        actor.rollback()


@pytest.mark.parametrize("value", [SURROGATE, NUL, 7])
def test_criteria_that_no_engine_can_be_asked_for(db: Database, value: Any) -> None:
    with db.session() as actor:
        for criterion in (Mail.topic == value, Mail.topic.in_(["a", value])):
            with pytest.raises(ArgumentError, match="a key="):
                actor.claim(Mail, criterion)
            actor.rollback()


def test_parts_of_keys_may_be_criteria(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Mail, [{"topic": "a b"}])
        assert len(actor.find(Mail, Mail.topic.startswith("a "))) == 1
        assert actor.find(Mail, Mail.topic == "") == []


OTHER_TEXTS: dict[str, Callable[[Actor, Any], Any]] = {
    "claimed_by": lambda actor, wrong: actor.claim(Task, claimed_by=wrong),
    "paused_by": lambda actor, wrong: actor.pause(Mail, paused_by=wrong),
    "topic": lambda actor, wrong: actor.pause(Mail, wrong),
    "key": lambda actor, wrong: actor.set_limit(Visit, wrong, 1),
    "destination": lambda actor, wrong: actor.enqueue(Outgoing, [{"payload": {}, "destination": wrong}]),
}


@pytest.mark.parametrize("wrong", [SURROGATE, NUL, 7])
@pytest.mark.parametrize("name", OTHER_TEXTS)
def test_texts_that_cannot_be_stored(db: Database, name: str, wrong: Any) -> None:
    with db.session() as actor, pytest.raises(ArgumentError, match=f"{name}="):
        OTHER_TEXTS[name](actor, wrong)


def test_names_that_cannot_be_stored(sync_db: Database) -> None:
    for wrong in (SURROGATE, NUL, ""):
        with pytest.raises(ArgumentError, match="name="):
            Worker(sync_db.sessions(), name=wrong)
        with pytest.raises(ArgumentError, match="name="):
            Worker(sync_db.sessions()).task(Job, name=wrong)(len)


NOT_JSON: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "result is nan"),
    "infinity": ({"a": [1, math.inf]}, "result.a.1 is inf"),
    "bytes": ([b"x"], "result.0 is a bytes"),
    "a set": ({1}, "result is a set"),
    "an int as a key": ({"a": {1: 2}}, "result.a has the key 1"),
    "None as a key": ({None: 2}, "result has the key None"),
    "a surrogate": ([SURROGATE], "result.0 contains a NUL character or a lone surrogate"),
    "an integer of many bits": (2**63, "result needs more than 64 bits"),
    "an object": ({"a": object()}, "result.a is a object"),
}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
NOT_JSON["a cycle"] = (CYCLE, "contains itself")


@pytest.mark.parametrize("name", NOT_JSON)
def test_results_that_are_not_json(db: Database, name: str) -> None:
    value, words = NOT_JSON[name]
    db.committed.enqueue(Film, [{}])
    with db.begin() as actor:
        film = actor.claim(Film)
        with pytest.raises(ArgumentError, match=words):
            actor.complete(film, value)
        actor.complete(film, {"a": (1, 2.5, None, "é", -(2**63))}, stage="print")
    with db.session() as actor, pytest.raises(ArgumentError, match="cannot be stored as JSON"):
        actor.enqueue(Job, [{"task": "a", "arguments": {"a": value}}])
    (film,) = db.session().find(Film)
    assert film.result == {"a": [1, 2.5, None, "é", -(2**63)]}


def test_a_part_of_a_key_that_is_missing(db: Database) -> None:
    with db.session() as actor, pytest.raises(ArgumentError, match="line=None: each part"):
        actor.enqueue(Seat, [{"line": None, "number": 1}])


ENDLESS = timedelta.max
DURATIONS: dict[str, Callable[[Actor, Any], Any]] = {
    "lease": lambda actor, _: actor.claim(Task, lease=ENDLESS),
    "lease of a heartbeat": lambda actor, task: actor.heartbeat(task, ENDLESS),
    "retry_in": lambda actor, task: actor.fail(task, "no", retry_in=ENDLESS),
    "delay": lambda actor, task: actor.snooze(task, ENDLESS),
    "delay of an insert": lambda actor, _: actor.enqueue(Task, [{}], delay=ENDLESS),
    "older_than": lambda actor, _: actor.prune(Task, ENDLESS),
    "since": lambda actor, _: actor.timeline(Task, since=ENDLESS),
    "retention": lambda *_: QueueOptions(retention=ENDLESS),
    "lease of a model": lambda *_: QueueOptions(lease=ENDLESS),
    "cap": lambda *_: LinearBackoff(cap=ENDLESS),
}


@pytest.mark.parametrize("name", DURATIONS)
def test_durations_beyond_the_clock(db: Database, name: str) -> None:
    db.committed.add(Task())
    with db.session() as actor:
        with pytest.raises(ArgumentError, match="at most 100 years"):
            DURATIONS[name](actor, actor.claim(Task))
        actor.rollback()


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
    with db.engine.begin() as connection:
        connection.execute(insert(Visit.__table__), [{"limit_key": "a "}, {"limit_key": "a"}, {"limit_key": ""}])
        connection.execute(insert(Mail.__table__), [{"topic": ""}, {"topic": "a "}])
    with db.begin() as actor:
        visits, mails = actor.claim_many(Visit, limit=9), actor.claim_many(Mail, limit=9)
        assert {visit.limit_key for visit in visits} == {"a ", "a", ""}
        actor.complete(visits)
        actor.complete(mails)


def test_keys_match_only_exactly(db: Database) -> None:
    keys = ["abC", "aBc", "a", "\u65e5\u672c", "\u6771\u4eac"]
    with db.begin() as actor:
        actor.enqueue(Listing, [{"unique_key": key} for key in keys], on_conflict="ignore")
        found = actor.scalars(select(Listing.unique_key)).all()
    assert sorted(found) == sorted(keys)
