"""Errors as raised by servers and their drivers, and how a worker classifies them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqlqueue import claim
from sqlqueue.dialects import adapter_for
from sqlqueue.worker.database import passes
from tests.drivers.cases import raised, taken_for
from tests.support.harness import Database
from tests.support.models import Account, Task


@pytest.fixture
def accounts(sync_db: Database) -> Database:
    sync_db.insert(Account, [{"id": 1, "name": ""}, {"id": 2, "name": ""}])
    return sync_db


@contextmanager
def connected(db: Database, setting: str | None = None, level: str | None = None) -> Iterator[Connection]:
    """Open a connection that is not used afterwards."""
    with db.engine.connect() as connection:
        if setting:
            connection.exec_driver_sql(setting)
            connection.commit()
        if level:
            connection.execution_options(isolation_level=level)
        yield connection
        connection.invalidate()


def write(connection: Connection, account: int) -> None:
    connection.execute(update(Account).where(Account.id == account).values(name=Account.name + "x"))


def kind_of(db: Database, error: DBAPIError) -> str:
    return taken_for(adapter_for(db.engine.dialect), error)


def kind(db: Database, call: Callable[[], object]) -> str:
    """Return the class of the error that is raised."""
    return kind_of(db, raised(call))


@pytest.mark.requires("locks_rows")
def test_a_deadlock_is_transient(accounts: Database) -> None:
    errors: list[DBAPIError] = []
    with connected(accounts) as one, connected(accounts) as other:
        write(one, 1)
        write(other, 2)
        thread = Thread(target=lambda: _catch(errors, lambda: write(other, 1)))
        thread.start()
        _catch(errors, lambda: write(one, 2))
        one.rollback()
        thread.join()
    (error,) = errors
    assert kind_of(accounts, error) == "transient"


def _catch(errors: list[DBAPIError], call: Callable[[], object]) -> None:
    try:
        call()
    except DBAPIError as error:
        errors.append(error)


@pytest.mark.requires("impatient_sql")
def test_a_lock_timeout_is_transient(accounts: Database) -> None:
    with connected(accounts) as one, connected(accounts, accounts.case.impatient_sql) as other:
        write(one, 1)
        assert kind(accounts, lambda: write(other, 1)) == "transient"


@pytest.mark.requires("locks_rows")
def test_a_nowait_lock_failure_is_transient(accounts: Database) -> None:
    with connected(accounts) as one, connected(accounts) as other:
        write(one, 1)
        locking = select(Account.id).where(Account.id == 1).with_for_update(nowait=True)
        assert kind(accounts, lambda: other.execute(locking)) == "transient"


@pytest.mark.requires("strict_snapshots")
def test_a_row_that_has_changed_since_the_snapshot_is_transient(accounts: Database) -> None:
    with connected(accounts, level="REPEATABLE READ") as one, connected(accounts) as other:
        one.execute(select(Account.name)).all()
        write(other, 1)
        other.commit()
        assert kind(accounts, lambda: write(one, 1)) == "transient"


@pytest.mark.requires("one_writer")
def test_another_writer_is_transient(accounts: Database) -> None:
    with connected(accounts, "PRAGMA busy_timeout = 50") as one, connected(accounts) as other:
        one.exec_driver_sql("BEGIN")
        one.execute(select(Account.name)).all()
        write(other, 1)
        assert kind(accounts, lambda: write(one, 1)) == "transient"
        other.commit()
        assert kind(accounts, lambda: write(one, 1)) == "transient"  # the data that it has read is out of date


@pytest.mark.requires("failing_sql")
def test_errors_of_clusters(accounts: Database) -> None:
    found = {}
    for statement in accounts.case.failing_sql:
        with connected(accounts) as connection:
            found[statement] = kind(accounts, partial(connection.exec_driver_sql, statement))
    assert found == accounts.case.failing_sql


@pytest.mark.requires("kill_sql")
def test_a_killed_connection_is_an_outage(accounts: Database) -> None:
    with connected(accounts) as one, connected(accounts) as other:
        victim = one.scalar(select(getattr(func, accounts.case.connection_id)()))
        other.exec_driver_sql(accounts.case.kill_sql.format(connection=victim))
        assert kind(accounts, lambda: [write(one, 1), time.sleep(0.05), write(one, 1)]) == "outage"


def add(session: Session, model: Any) -> None:
    session.add(model())
    session.flush()


@pytest.mark.requires("kill_sql")
@pytest.mark.parametrize("use", [claim, add])
def test_a_connection_that_died_in_the_pool_is_an_outage_when_it_is_used(sync_db: Database, use: Any) -> None:
    """The statement that sets the isolation level, or begins a transaction, fails first; SQLAlchemy does not see it."""
    engine = create_engine(sync_db.url, pool_size=1)
    with Session(engine) as session:
        victim = session.scalar(select(getattr(func, sync_db.case.connection_id)()))
        session.rollback()
        with sync_db.engine.connect() as other:
            other.exec_driver_sql(sync_db.case.kill_sql.format(connection=victim))
        assert kind(sync_db, lambda: use(session, Task)) == "outage"
        session.rollback()
        use(session, Task)  # on another connection
    engine.dispose()


@pytest.mark.requires("container")
def test_an_absent_server_is_an_outage(accounts: Database) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        elsewhere = accounts.url.set(host="127.0.0.1", query={})  # a query may name a socket, which overrides the host
        for url in (elsewhere.set(port=nobody.getsockname()[1]), elsewhere.set(host="nowhere.invalid")):
            error = raised(create_engine(url).connect)
            assert not error.connection_invalidated
            assert kind_of(accounts, error) == "outage"


@pytest.mark.requires("idle_sql")
def test_an_idle_in_transaction_timeout_is_not_an_outage(accounts: Database) -> None:
    with connected(accounts, accounts.case.idle_sql) as one:
        write(one, 1)
        time.sleep(0.2)
        error = raised(lambda: write(one, 1))
    assert error.connection_invalidated
    assert kind_of(accounts, error) == "neither"
    assert passes(error, adapter_for(accounts.engine.dialect))


@pytest.mark.requires("one_writer")
def test_a_file_that_cannot_be_opened_is_an_outage(accounts: Database) -> None:
    assert kind(accounts, create_engine(accounts.url.set(database="/nowhere/at/all.db")).connect) == "outage"


@pytest.mark.requires("one_writer")
def test_a_full_disk_is_an_outage(accounts: Database) -> None:
    with connected(accounts, "PRAGMA max_page_count = 1") as one:
        fill = partial(one.execute, insert(Account), [{"name": "x" * 100_000}] * 1_000)
        assert kind(accounts, fill) == "outage"
