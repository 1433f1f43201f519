"""The loader options of a handler: its tasks have their relationships loaded, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import joinedload, raiseload, selectinload

from sqlqueue import ArgumentError
from sqlqueue.testing import drain, perform
from tests.support.harness import Database
from tests.support.models import Account, Attachment, Mail
from tests.support.rows import rows
from tests.support.workers import Workers, all_are, eventually

OPTIONS = (joinedload(Mail.account), selectinload(Mail.attachments), raiseload("*"))


@pytest.fixture
def mails(db: Database) -> None:
    db.insert(Account, [{"id": 7, "name": "ada"}])
    db.insert(Mail, [{**row, "id": number, "account_id": 7} for number, row in enumerate(rows(3), 1)])
    db.insert(Attachment, [{"mail_id": number, "name": f"file {number}"} for number in (1, 2, 3)])


class Reader:
    """Handlers that read relationships."""

    def __init__(self, db: Database) -> None:
        self.is_async = db.is_async
        self.seen: set[tuple[str, str]] = set()

    def read(self, mail: Mail) -> None:
        assert mail.account is not None
        self.seen.update((mail.account.name, attachment.name) for attachment in mail.attachments)

    def handler(self, *, session: bool) -> Any:
        def with_session(_: Any, mail: Mail) -> None:
            self.read(mail)

        async def async_with_session(_: Any, mail: Mail) -> None:
            self.read(mail)

        async def async_without(mail: Mail) -> None:
            self.read(mail)

        if self.is_async:
            return async_with_session if session else async_without
        return with_session if session else self.read

    @property
    def has_seen_all(self) -> bool:
        return self.seen == {("ada", f"file {number}") for number in (1, 2, 3)}


@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize(
    ("mode", "session"), [("lease", False), ("lease", True), ("lock", True), ("at-most-once", False)]
)
def test_a_handler_gets_a_task_with_its_options_loaded(
    db: Database, workers: Workers, mode: Any, session: bool
) -> None:
    worker, reader = workers.make(), Reader(db)
    worker.handler(Mail, mode=mode, options=OPTIONS)(reader.handler(session=session))
    workers.start(worker)
    eventually(all_are(db, "completed", Mail))
    eventually(lambda: reader.has_seen_all)  # completed before the handler is called, at most once


@pytest.mark.usefixtures("mails")
@pytest.mark.parametrize("session", [False, True])
def test_the_test_helpers_load_the_same(db: Database, workers: Workers, session: bool) -> None:
    worker, reader = workers.make(), Reader(db)
    worker.handler(Mail, options=OPTIONS)(reader.handler(session=session))
    with db.begin() as actor:
        first = actor.claim(Mail)
        actor.pass_to(lambda session: perform(worker, session, first))
        actor.pass_to(lambda session: drain(worker, session))
    assert reader.has_seen_all


def test_loader_options_are_a_sequence(db: Database, workers: Workers) -> None:
    options: Any = joinedload(Mail.account)
    with pytest.raises(ArgumentError, match="options="):
        workers.make().handler(Mail, options=options)(Reader(db).handler(session=False))
