"""Queues partitioned by an attribute, such as a message type: fair shares, and an index for each claim."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import event, func, select

from sqlqueue import ArgumentError
from sqlqueue.dialects import adapter_for
from sqlqueue.sql.selection import picks
from tests.support.harness import Database
from tests.support.models import Message, Spool
from tests.support.rows import analyze, count, ids, rows


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
        seen: list[str] = []
        event.listen(sync_db.session_engine, "before_cursor_execute", lambda *a: seen.append(a[2]))
        assert len(actor.claim_in_turns(Message, Message.kind, ["few"], limit=2)) == 2
        actor.rollback()
    for step, name in zip(picks(Message.__queue_spec__, [Message.kind == "few"], ()), ("claim", "due"), strict=True):
        pick = step(2)
        assert pick.index == f"ix_message_kind_{name}"
        with sync_db.engine.connect() as connection:
            plan = adapter.plans.of(connection, pick.select(Message.id).limit(2))
        assert plan.indexes == {pick.index}
        assert not plan.sorted


def test_the_reader_of_a_message_is_recorded(db: Database) -> None:
    messages(db, a=2, b=1)
    with db.begin() as actor:
        found = actor.claim_in_turns(Message, Message.kind, ["a", "b"], limit=9, claimed_by="reader 7")
        actor.complete(found)
    assert count(db, Message, Message.status == "completed", Message.claimed_by == "reader 7") == 3


def test_tasks_claimed_in_turns_are_deleted_on_completion(db: Database) -> None:
    db.insert(Spool, [{"text": text} for text in "aab"])
    with db.begin() as actor:  # by any attribute, even without an index
        actor.complete(actor.claim_in_turns(Spool, Spool.text, ["a", "b"], limit=2))
    with db.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(Spool.__table__)).scalar_one() == 1


@pytest.mark.parametrize("values", ["ab", ["a", "a"], {"a"}, [["a"]]])
def test_invalid_values(sync_db: Database, values: Any) -> None:
    with sync_db.session() as actor, pytest.raises(ArgumentError, match="give a sequence of different values"):
        actor.claim_in_turns(Message, Message.kind, values, limit=1)


def test_an_unknown_attribute(sync_db: Database) -> None:
    with sync_db.session() as actor, pytest.raises(ArgumentError, match="by='kind': give an attribute"):
        actor.claim_in_turns(Message, "kind", ["a"], limit=1)
