"""Errors are grouped by what they have in common, and a group is all of its tasks and no others."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import update

from sqlqueue import in_error_group
from sqlqueue._support.texts import error_group, error_pattern
from sqlqueue.operations import reactivating
from sqlqueue.operations.paging import page
from sqlqueue.operations.reactivating import RETRY
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Database
from tests.support.history import Errand, archive
from tests.support.models import Task
from tests.support.rows import PAST, load_all

__all__ = ["archive"]

FAILED = {"status": "discarded", "attempt": 3, "finished_at": PAST, "available_at": PAST, "claimed_at": PAST}

ALIKE = {
    "MailServerDown: smtp-<n> refused <email> (request <n>)": [
        "MailServerDown: smtp-1 refused u17@example.org (request 1f6ffe72)",
        "MailServerDown: smtp-22 refused ada.l+x@mail.example.org (request 16827341)",  # hexadecimal, but only digits
        "MailServerDown: smtp-3 refused root@localhost (request deadbeef)",
    ],
    "NotFound: <uuid> is not at <n>": [
        f"NotFound: {uuid4()} is not at {at}" for at in ("10.0.0.7:80", "fe80::1a:2", "0x7f00")
    ],
    "Late: since <date>, not <time>": [
        "Late: since 2026-11-27T07:30:31.123Z, not 07:30",
        "Late: since 2026-11-27 07:30:31+02:00, not 7:30:31.5",
        "Late: since Fri, 27 Nov 2026 07:30:31 GMT, not 17:30 UTC",
        "Late: since Fri Nov 27 07:30:31 2026, not 07:30Z",
        "Late: since 11/27/2026, not 0:00:30",
    ],
    "KeyError: '…'": ["KeyError: 'a'", 'KeyError: "it\'s"', "KeyError: b'\\x00'", "KeyError: 'so long that it is cut…"],
    "Http404: can't open page <n> of <n>": [
        "Http404: can't open page 1\n of 1.5e3",
        "Http404: can't open page 2 of -7",
    ],
    "AttributeError: 'NoneType' object has no attribute 'send'": [
        "AttributeError: 'NoneType' object has no attribute 'send'"
    ],
    "TypeError: got '…', not a decade": ["TypeError: got 'x7', not a decade", "TypeError: got 'a b', not a decade"],
    "ValueError: token <n>": ["ValueError: token AKIAIOSFODNN7EXAMPLE", "ValueError: token 7"],
    "TimeoutError": ["TimeoutError"],
    "(no text)": ["", " \n"],
}


@pytest.mark.parametrize("pattern", ALIKE)
def test_what_varies_is_replaced(pattern: str) -> None:
    assert {error_pattern(text) for text in ALIKE[pattern]} == {pattern}
    assert len({error_group(text) for text in ALIKE[pattern]}) == 1


def test_long_texts_are_alike_by_their_beginnings() -> None:
    text = "Refused: " + "no way. " * 200
    assert error_group(f"{text}1") == error_group(f"{text}because") != error_group(text[:200])
    assert len(error_pattern(text)) == 300


def refused(number: int) -> str:
    return f"MailServerDown: smtp-1 refused u{number}@example.org (request {number:08x})"


OTHER = "MailServerDown: smtp-backup refused the greeting (request denied)"


@pytest.mark.sync_only
def test_a_group_is_its_tasks_and_no_others(db: Database) -> None:
    db.insert(Task, [{"id": n, "available_at": PAST} for n in range(1, 124)])
    with db.begin() as session:
        for task in session.claim_many(Task, limit=123):
            session.fail(task, OTHER if task.id > 122 else refused(task.id), timedelta(0))
        session.complete(session.claim(Task, Task.id == 122))  # what failed before has succeeded
    db.insert(Task, [{"id": n, **FAILED, "error": text} for n, text in ((124, "from elsewhere 1"), (125, "else 2"))])
    with db.begin() as session:
        groups = session.errors(Task)
        told = [(group.pattern, group.tasks, group.attempts, group.functions) for group in groups]
        assert told == [
            ("MailServerDown: smtp-<n> refused <email> (request <n>)", 121, None, []),
            (OTHER, 1, None, []),
            ("else <n>", 1, None, []),
            ("from elsewhere <n>", 1, None, []),
        ]
        assert [group.unfinished for group in groups] == [121, 1, 0, 0]
        assert groups[0].message == refused(groups[0].example[0])
        assert groups[0].first_seen == groups[0].last_seen is not None
        found = [{task.id for task in session.find(Task, in_error_group(Task, group.key))} for group in groups]
        assert found == [set(range(1, 122)), {123}, {125}, {124}]
        assert session.retry(Task, in_error_group(Task, groups[0].key)) == 121
        assert session.cancel(Task, in_error_group(Task, groups[1].key)) == 1
        assert session.retry(Task, in_error_group(Task, "no such group")) == 0
    statuses = {task.id: task.status for task in load_all(db, Task)}
    others = {122: "completed", 123: "cancelled", 124: "discarded", 125: "discarded"}
    assert statuses == dict.fromkeys(range(1, 122), "available") | others


@pytest.mark.one_engine
def test_a_task_that_fails_anew_leaves_the_group_that_is_being_changed(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactivating, "BATCH", 1)
    sync_db.insert(Task, [{"id": n, **FAILED, "error": "x", "error_group": error_group("x 1")} for n in (1, 2)])
    spec, chosen = spec_of(Task), in_error_group(Task, error_group("x 1"))
    with sync_db.session() as actor:
        batches = RETRY.in_batches(actor.session, {spec: [chosen]})
        assert next(batches).changed == 1
        sync_db.execute(update(Task).where(Task.status == "discarded").values(error_group=error_group("y")))
        assert [batch.changed for batch in batches] == [0]


@pytest.mark.one_engine
def test_a_page_shows_a_group_behind_more_tasks_than_it_examines(sync_db: Database) -> None:
    others, mine = ({"error": text, "error_group": error_group(text)} for text in ("y", "x"))
    sync_db.insert(Task, [{"id": n, **FAILED, **(mine if n < 4 else others)} for n in range(1, 31)])
    with sync_db.session() as actor:
        shown = actor.run(page, Task, in_error_group(Task, error_group("x")), scan=10)
    assert ([task.id for task in shown.tasks], shown.is_cut) == ([3, 2, 1], False)


@pytest.mark.sync_only
def test_a_history_tells_the_attempts_of_a_group_whatever_became_of_its_tasks(archive: Database) -> None:
    archive.insert(Errand, [{"id": n, "task": f"send_{n % 2}", "available_at": PAST} for n in range(1, 5)])
    with archive.begin() as session:
        for number in range(8):
            session.fail(session.claim(Errand, Errand.id == 1 + number // 2), refused(number), timedelta(0))
        session.fail(session.claim(Errand, Errand.id == 4), "no 1", timedelta(0))
        for number in (1, 3, 4):
            session.complete(session.claim(Errand, Errand.id == number))
    with archive.begin() as session:
        mail, no = session.errors(Errand)
        (limited, *_) = session.errors(Errand, cap=5)
    assert (mail.message, mail.attempts, mail.tasks, mail.unfinished, mail.example) == (refused(7), 8, 1, 1, (2,))
    assert mail.functions == ["send_0"]
    assert (no.message, no.attempts, no.tasks, no.example, no.functions) == ("no 1", 1, 0, (4,), ["send_0"])
    assert (limited.attempts, limited.capped) == (4, {"attempts"})
    assert (mail.key, no.key) == (error_group(refused(1)), error_group("no 2"))
