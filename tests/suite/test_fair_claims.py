"""Claims of several kinds of tasks at once: fair shares, an index for each claim, and several topics in one order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sqlqueue.dialects import adapter_for
from sqlqueue.sql import picks
from tests.support.harness import Database
from tests.support.models import Mail, Message, Spool
from tests.support.rows import PAST, analyze, contenders, count, ids, rows


def messages(db: Database, **counts: int) -> None:
    db.insert(Message, [row for kind, n in counts.items() for row in rows(n, kind=kind)])


def in_turns(db: Database, limit: int, *kinds: str, **arguments: Any) -> Counter[str]:
    with db.session() as actor:
        found = actor.claim_in_turns(Message, Message.kind, kinds, limit=limit, **arguments)
        counts = Counter(task.kind for task in found)
        assert [task.kind for task in found] == [kind for kind, n in counts.items() for _ in range(n)]
        assert ids(found)
        actor.rollback()
    return counts


def test_each_value_gets_its_share_and_the_others_get_the_rest(db: Database) -> None:
    messages(db, many=50, some=10, few=2, others=10)
    assert in_turns(db, 9, "many", "some", "others") == {"many": 3, "some": 3, "others": 3}
    assert in_turns(db, 12, "many", "some", "few", "none") == {"many": 5, "some": 5, "few": 2}
    assert in_turns(db, 40, "many", "few", lease=None) == {"many": 38, "few": 2}
    assert in_turns(db, 100, "some", "few") == {"some": 10, "few": 2}
    assert set(in_turns(db, 2, "many", "some", "others").values()) == {1}
    kinds = {kind for _ in range(30) for kind in in_turns(db, 1, "many", "some")}
    assert kinds == {"many", "some"}  # no kind is always the first


@pytest.mark.requires("plans_empty_tables")
def test_a_claim_of_one_kind_uses_its_own_index(sync_db: Database) -> None:
    messages(sync_db, many=2_000, few=2)
    analyze(sync_db, Message)
    adapter = adapter_for(sync_db.engine.dialect)
    with sync_db.session() as actor:
        assert len(actor.claim_in_turns(Message, Message.kind, ["few"], limit=2)) == 2
        actor.rollback()
    for step, name in zip(picks(Message.__queue_spec__, [Message.kind == "few"], ()), ("claim", "due"), strict=True):
        pick = step(2)
        assert pick.index == f"ix_message_kind_{name}"
        with sync_db.engine.connect() as connection:
            plan = adapter.inspection.plan(connection, pick.select(Message.id).limit(2))
        assert plan.indexes == {pick.index}
        assert not plan.sorted


def test_tasks_claimed_in_turns_are_completed(db: Database) -> None:
    messages(db, a=2, b=1)
    db.insert(Spool, [{"text": text} for text in "aab"])
    with db.begin() as actor:
        actor.complete(actor.claim_in_turns(Message, Message.kind, ["a", "b"], limit=9, claimed_by="reader 7"))
        # by any attribute, even without an index; completed tasks of this model are deleted
        actor.complete(actor.claim_in_turns(Spool, Spool.text, ["a", "b"], limit=2))
    assert count(db, Message, Message.status == "completed", Message.claimed_by == "reader 7") == 3
    assert count(db, Spool) == 1


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
