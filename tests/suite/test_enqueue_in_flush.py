"""Enqueueing in listeners of a flush."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

import sqlqueue
from tests.suite.documents import rows
from tests.support.harness import Database
from tests.support.models import Document


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "after_flush_postexec"])
@pytest.mark.parametrize("on_conflict", ["raise", "ignore", "replace", "rerun"])
@pytest.mark.parametrize("as_rows", [False, True], ids=["instance", "rows"])
def test_enqueueing_while_the_session_flushes(db: Database, hook: str, on_conflict: Any, as_rows: bool) -> None:
    """An outbox or an audit trail is written there."""
    with db.begin() as actor:

        @event.listens_for(actor.sync_session, hook, once=True)
        def enqueue(session: Session, *_: object) -> None:
            given: Any = (Document, [{"id": "b"}]) if as_rows else (Document(id="b"),)
            sqlqueue.enqueue(session, *given, on_conflict=on_conflict)

        actor.add(Document(id="a"))
        actor.flush()
    assert [document.id for document in rows(db, Document)] == ["a", "b"]
