"""Claims of several topics at once: in queue order, skipping locked rows, and without reading other topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.harness import Database
from tests.support.models import Mail
from tests.support.rows import PAST, contenders

LISTED = ["a", "b"]


def ids(tasks: Iterable[Any]) -> list[int]:
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
        expected = ids(every)
        actor.rollback()
    with db.session() as actor:
        first = ids(actor.claim_many(Mail, Mail.topic.in_(LISTED), limit=7, lease=lease))
        assert first == expected[:7]
        assert ids(actor.claim_many(Mail, Mail.topic.in_(LISTED), limit=30, lease=lease)) == expected[7:]
        assert len(actor.claim_many(Mail, Mail.topic.in_(["z", "none"]), limit=30, lease=lease)) == 10
        actor.rollback()


@pytest.mark.requires("locks_rows")
def test_claims_skip_rows_that_others_hold(sync_db: Database) -> None:
    mails(sync_db, 90)
    first, second = contenders(sync_db)
    mine = ids(first.claim_many(Mail, Mail.topic.in_(LISTED), limit=40))
    theirs = ids(second.claim_many(Mail, Mail.topic.in_(LISTED), limit=10))
    rest = ids(second.claim_many(Mail, limit=90))
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
