"""The SQL and the parameters of a statement that fails in a handler contain data, so they are not stored or logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sqlqueue import Claim
from tests.support.harness import Database
from tests.support.history import Flare, Parcel, archive, sync_archive
from tests.support.workers import Workers, eventually, statuses, with_session

__all__ = ["archive", "sync_archive"]

SECRET = "hunter2"


def insert_again(session: Session) -> None:
    session.add(Flare(region="a", number=1, error=SECRET))
    session.flush()


def wrap(session: Session) -> None:
    try:
        insert_again(session)
    except IntegrityError as error:
        raise LookupError("no flare") from error


def fail_while_handling(session: Session) -> None:
    try:
        insert_again(session)
    finally:
        int("no flare")


def group(session: Session) -> None:
    try:
        insert_again(session)
    except IntegrityError as error:
        raise ExceptionGroup("several", [error]) from None


def go_on(session: Session) -> None:
    with suppress(IntegrityError):
        insert_again(session)
    session.get(Flare, ("b", 2))


FAILURES = {
    insert_again: "IntegrityError: (",
    wrap: "LookupError: no flare",
    fail_while_handling: "ValueError: invalid literal",
    group: "ExceptionGroup: several (1 sub-exception)",
    go_on: "PendingRollbackError: This Session's transaction has been rolled back",
}


@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("fails", FAILURES)
def test_the_parameters_of_a_statement_are_kept_secret(
    archive: Database, workers: Workers, caplog: pytest.LogCaptureFixture, fails: Callable[[Session], None], mode: Any
) -> None:
    archive.insert(Flare, [{"region": "a", "number": 1}])
    archive.insert(Parcel, [{"id": 1, "max_attempts": 1}])
    worker = workers.make()
    worker.handler(Parcel, mode=mode)(with_session(archive, lambda session, _: fails(session)))
    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        running = workers.start(worker)
        eventually(lambda: statuses(archive, Parcel) == {1: "discarded"})
        running.stop()
    with archive.begin() as session:
        parcel = session.get(Parcel, 1)
        (attempt,) = session.history(Claim(Parcel, (1,), 0))
        (found,) = session.errors(Parcel)
    for text in (parcel.error, attempt.error, found.message):
        assert text.startswith(FAILURES[fails])
    assert f"in {fails.__name__}" in attempt.traceback
    logged = caplog.text + "".join(record.exc_text or "" for record in caplog.records)
    for text in (parcel.error, attempt.error, attempt.traceback, found.message, logged):
        assert SECRET not in text
        assert "[SQL: " not in text
