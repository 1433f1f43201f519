"""`check` reports missing privileges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from tests.support.check_models import OwnBase, Post, Slip
from tests.support.harness import Database


@pytest.mark.requires("account_sql")
def test_missing_privileges_are_reported(reader: Any) -> None:
    error, *_ = reader()
    assert (error.severity, error.code, error.model) == ("error", "missing-privilege", Post)
    error, warning = reader("SELECT ON checked_post")
    assert (error.severity, error.code) == ("error", "missing-privilege")
    assert "INSERT, UPDATE on checked_post" in error.message
    assert (warning.severity, warning.code) == ("warning", "missing-privilege")
    assert "DELETE" in warning.message
    (error,) = reader("INSERT, DELETE, UPDATE (status, error) ON checked_post")
    assert "lacks UPDATE on" in error.message


@pytest.mark.requires("account_sql")
def test_privileges_on_single_columns_are_enough(reader: Any) -> None:
    columns = ", ".join(column.name for column in Post.__queue_spec__.columns.values())
    assert reader(f"SELECT, INSERT, DELETE, UPDATE ({columns}) ON checked_post") == []


@pytest.mark.requires("account_sql")
def test_rows_that_are_to_go_need_the_right_to_delete(healthy: Database, reader: Any) -> None:
    OwnBase.metadata.create_all(healthy.engine)
    lacking = [
        each for each in reader("SELECT, INSERT, UPDATE ON checked_slip", target=Slip) if each.severity == "error"
    ]
    assert ["DELETE" in each.message for each in lacking] == [True]


@pytest.fixture
def withheld(healthy: Database) -> Iterator[None]:
    """What every account may usually ask."""
    rights = (
        "EXECUTE ON FUNCTION pg_catalog.pg_is_in_recovery()",
        "EXECUTE ON FUNCTION pg_catalog.has_column_privilege(text, text, text)",
    )
    administrator = create_engine(healthy.url.set(username=healthy.case.administrator), poolclass=NullPool)
    with administrator.begin() as connection:
        for right in rights:
            connection.exec_driver_sql(f"REVOKE {right} FROM PUBLIC")
    yield
    with administrator.begin() as connection:
        for right in rights:
            connection.exec_driver_sql(f"GRANT {right} TO PUBLIC")


@pytest.mark.requires("account_sql", "sequences")
def test_what_the_account_may_not_ask_is_noted(withheld: None, reader: Any) -> None:
    server, table = reader("SELECT, INSERT, UPDATE, DELETE ON checked_post")
    assert [(each.severity, each.code) for each in (server, table)] == [("note", "not-checked")] * 2
    assert server.message.startswith("the state of the server could not be checked")
    assert table.message.startswith("the privileges of checked_post could not be checked")
    assert (server.model, table.model) == (None, Post)


@pytest.mark.requires("sequences")
def test_the_sequence_of_a_key(healthy: Database, reader: Any) -> None:
    OwnBase.metadata.create_all(healthy.engine)
    (error,) = reader("SELECT, INSERT, UPDATE, DELETE ON checked_slip", target=Slip)
    assert "USAGE on the sequence of id" in error.message
    assert reader("USAGE ON SEQUENCE checked_slip_id_seq", target=Slip) == []
