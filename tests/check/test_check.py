"""`check` finds nothing wrong in a healthy database, and changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, func, insert, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, DropIndex
from typer.testing import CliRunner

from sqlqueue import Severity, check, verify_schema
from sqlqueue.cli import application
from sqlqueue.model.declaration import queues
from sqlqueue.sql import NEVER
from tests.check.checking import CLAIM, TABLE, execute, findings, found
from tests.support.check_models import Base, Post
from tests.support.engines import PASSWORD
from tests.support.harness import Database
from tests.support.models import Base as Models
from tests.support.rows import contenders, without_waiting


def test_a_healthy_database(healthy: Database) -> None:
    assert findings(healthy) == []
    with healthy.session_engine.connect() as connection:
        verify_schema(connection, Base)


def test_every_kind_of_queue_is_healthy(sync_db: Database) -> None:
    level = "SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED"
    db = sync_db.variant(isolation_level=level)
    kept = [each for each in queues(Models.metadata) if db.case.keeps_index_names or each.name == each.name.lower()]
    found = [finding for spec in kept for finding in findings(db, spec.entity)]
    # a note may say that a few rows, which an earlier test left in the statistics, are read without the index
    assert [finding for finding in found if finding.severity is not Severity.NOTE] == []


def test_a_missing_table_is_reported(healthy: Database) -> None:
    Base.metadata.drop_all(healthy.engine)
    (finding,) = findings(healthy)
    assert (finding.severity, finding.code) == ("error", "missing-table")
    assert (finding.model, finding.table) == (Post, "checked_post")
    assert "alembic" in finding.fix


@pytest.mark.parametrize(("retention", "code"), [(None, None), (timedelta(days=7), "adopted-rows")])
def test_rows_from_before_the_table_became_a_queue(
    healthy: Database, monkeypatch: pytest.MonkeyPatch, retention: timedelta | None, code: str | None
) -> None:
    healthy.insert(Post, [{"status": "completed", "available_at": NEVER}])
    healthy.insert(Post, [{} for _ in range(30)])
    spec = Post.__queue_spec__
    monkeypatch.setattr(Post, "__queue_spec__", replace(spec, options=replace(spec.options, retention=retention)))
    assert found(healthy) == ({("note", code)} if code else set())


def test_nothing_is_changed_and_no_transaction_left_open(healthy: Database) -> None:
    healthy.insert(Post, [{"subject": "a"}, {"subject": "b"}])
    before = _all_there_is(healthy)
    with healthy.session_engine.connect() as connection:
        check(connection, Base)
        assert not connection.in_transaction()
        verify_schema(connection, Base)
        assert not connection.in_transaction()
    assert _all_there_is(healthy) == before


def _all_there_is(db: Database) -> tuple[Any, ...]:
    with db.engine.connect() as connection:
        worded, inspector = db.case.definition_sql, inspect(connection)
        return (
            connection.execute(select(TABLE).order_by(TABLE.c.id)).all(),
            worded and connection.exec_driver_sql(worded.format(table="checked_post")).all(),
            sorted(str(index["name"]) for index in inspector.get_indexes(TABLE.name)),
            inspector.get_table_names(),
        )


def test_a_transaction_that_is_open_stays_open(healthy: Database) -> None:
    with healthy.session_engine.connect() as connection:
        connection.execute(insert(TABLE), {"subject": "a"})
        check(connection, Base)
        assert connection.in_transaction()
        assert connection.scalar(select(func.count()).select_from(TABLE)) == 1
        connection.rollback()
        assert connection.scalar(select(func.count()).select_from(TABLE)) == 0


@pytest.mark.requires("locks_rows")
def test_no_row_is_locked(healthy: Database) -> None:
    healthy.insert(Post, [{} for _ in range(3)])
    looking, claimer = contenders(healthy)
    looking.run(lambda session: check(session.connection(), Base))
    assert len(without_waiting(looking, lambda: claimer.claim_many(Post, limit=3))) == 3
    looking.rollback()
    claimer.rollback()


def test_check_with_a_session_of_either_kind(db: Database) -> None:
    Base.metadata.drop_all(db.engine)
    actor = db.session()
    (*_, finding) = actor.run(lambda session: check(session.connection(), Base))
    assert finding.code == "missing-table"


def command(db: Database, *arguments: str, driver: str | None = None) -> Any:
    url = db.url.set(drivername=driver or db.case.sync_driver).render_as_string(hide_password=False)
    return CliRunner().invoke(application(), ["check", "--url", url, *arguments, "tests.support.check_models:Base"])


def test_the_command(healthy: Database) -> None:
    well = command(healthy)
    assert well.exit_code == 0, well.output
    assert "1 queue: " in well.output
    execute(healthy, DropIndex(CLAIM))
    told = command(healthy)
    assert told.exit_code == 1, told.output
    assert "1 error" in told.output
    assert PASSWORD not in told.output
    execute(healthy, CreateIndex(CLAIM))


@pytest.mark.parametrize("driver", ["sync_driver", "async_driver"])
def test_the_command_for_programs(healthy: Database, driver: str) -> None:
    execute(healthy, DropIndex(CLAIM))
    told = command(healthy, "--json", driver=getattr(healthy.case, driver))
    report = json.loads(told.stdout)
    assert (told.exit_code, report["ok"], report["queues"]) == (1, False, [f"{Post.__module__}.Post"])
    assert set(report) == {"engine", "version", "queues", "ok", "findings"}
    (error,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert set(error) == {"severity", "code", "model", "table", "message", "fix"}
    assert (error["code"], error["model"], error["table"]) == (
        "missing-index",
        f"{Post.__module__}.Post",
        "checked_post",
    )


@pytest.mark.requires("account_sql")
def test_the_command_with_an_account_that_is_rejected(healthy: Database) -> None:
    url = healthy.url.set(username="nobody_of_that_name", password="wrong")
    with pytest.raises(DBAPIError), create_engine(url).connect():
        pass
    told = CliRunner().invoke(
        application(), ["check", "--url", url.render_as_string(hide_password=False), "tests.support.check_models:Base"]
    )
    assert told.exit_code == 2
    assert "cannot connect: " in told.stderr
