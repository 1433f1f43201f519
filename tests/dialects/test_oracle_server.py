"""What `check` tells about an Oracle server, an account and a table, if the dictionary answers like this."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import oracledb
import pytest
from sqlalchemy import MetaData, Unicode
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import Finding, QueueMixin
from sqlqueue.dialects import adapter_for
from tests.dialects import recorder
from tests.dialects.recorder import answering, recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.support.models import Document, Listing, Outgoing, Parcel, Task, Transfer

BINARY = (("NLS_COMP", "BINARY"), ("NLS_SORT", "BINARY"))
HEALTHY = (
    ("sys_context", ("PRIMARY",)),
    ("nls_session_parameters", *BINARY),
    ("nls_database_parameters", ("AL32UTF8",)),
    ("all_tables", (None, "DISABLED")),
    ("part_key_columns",),
    ("all_tab_identity_cols",),
)


def connected(*answers: tuple[Any, ...], version: tuple[int, ...] = (23, 0, 0)) -> tuple[Any, Any]:
    engine, _ = recording_engine(ENGINES["oracle"][0], version)
    engine.dialect.default_schema_name = "ada"
    for part, *rows in (*HEALTHY, *answers):
        answering(engine, part, *rows)
    return engine.connect(), adapter_for(engine.dialect).inspection


def found(*answers: tuple[Any, ...], of: type[Any] | None = None) -> list[Finding]:
    connection, server = connected(*answers)
    with connection:
        return list(
            server.server_findings(connection) if of is None else server.table_findings(connection, of.__queue_spec__)
        )


@pytest.mark.parametrize("model", [None, Task, Listing, Document, Outgoing])
def test_nothing_is_wrong(model: type[Any] | None) -> None:
    assert found(of=model) == []


# -- texts -------------------------------------------------------------------------------------------------------------

SORTED = (("NLS_COMP", "BINARY"), ("NLS_SORT", "GERMAN"))
EQUATED = (("NLS_COMP", "LINGUISTIC"), ("NLS_SORT", "BINARY_CI"))


def test_sessions_that_do_not_compare_texts_exactly() -> None:
    (finding,) = found(("nls_session_parameters", *EQUATED))
    assert (finding.severity, finding.code) == ("error", "linguistic-comparison")
    assert "NLS_COMP is LINGUISTIC and NLS_SORT is BINARY_CI" in finding.message
    assert finding.fix.startswith("ALTER SESSION SET NLS_COMP = BINARY")


@pytest.mark.parametrize("rows", [SORTED, (("NLS_COMP", "LINGUISTIC"), ("NLS_SORT", "BINARY")), ()])
def test_sessions_that_compare_texts_exactly(rows: Any) -> None:
    assert found(("nls_session_parameters", *rows)) == []


def test_sessions_that_sort_texts_otherwise_than_indexes() -> None:
    (finding,) = found(("nls_session_parameters", *SORTED), of=Document)
    assert (finding.severity, finding.code) == ("warning", "linguistic-order")
    assert "no index orders id" in finding.message
    for model in (Task, Parcel):  # ordered by numbers, and by a UUID
        assert "linguistic-order" not in {each.code for each in found(("nls_session_parameters", *SORTED), of=model)}


def test_a_database_that_cannot_store_all_characters() -> None:
    latin = ("nls_database_parameters", ("WE8MSWIN1252",))
    (finding,) = found(latin, of=Listing)
    assert (finding.severity, finding.code) == ("note", "character-set")
    assert "WE8MSWIN1252" in finding.message
    assert "unique_key" in finding.message
    assert ["id of" in finding.message for finding in found(latin, of=Document)] == [True]
    assert found(latin, of=Task) == []  # it has no keys of text
    assert found(latin, of=wide()) == []  # the national character set is always Unicode


def wide() -> type[Any]:
    class Own(DeclarativeBase):
        metadata = MetaData()

    class Wide(QueueMixin, Own):
        __tablename__ = "wide"

        id: Mapped[str] = mapped_column(Unicode(80), primary_key=True)

    return Wide


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_whose_rowids_are_too_long() -> None:
    (finding,) = found(("all_tables", ("IOT", "DISABLED")), of=Task)
    assert (finding.severity, finding.code, finding.table) == ("error", "index-organized", "task")


@pytest.mark.parametrize(
    ("column", "moves", "codes"),
    [
        ("STATUS", "ENABLED", {"partition-key"}),
        ("STATUS", "DISABLED", {"partition-key"}),
        ("FINISHED_AT", "DISABLED", {"partition-key"}),
        ("FINISHED_AT", "ENABLED", set()),  # by then, no claim needs the row's place
        ("CREATED_AT", "DISABLED", set()),
    ],
)
@pytest.mark.parametrize("view", ["all_part_key_columns", "all_subpart_key_columns"])
def test_partitions_that_rows_would_leave(view: str, column: str, moves: str, codes: set[str]) -> None:
    findings = found(("all_tables", (None, moves)), (view, (column,)), of=Task)
    assert {finding.code for finding in findings} == codes
    assert all(column.lower() in finding.message for finding in findings)


ORDERED, UNORDERED = (
    ("all_tab_identity_cols", ("ID", f"START WITH: 1, INCREMENT BY: 1, CACHE_SIZE: 20, ORDER_FLAG: {flag}"))
    for flag in "YN"
)


@pytest.mark.parametrize(
    ("model", "options", "clustered", "codes"),
    [
        (Outgoing, UNORDERED, 1, ["unordered-identity"]),
        (Outgoing, UNORDERED, 0, []),
        (Outgoing, ORDERED, 1, []),
        (Transfer, UNORDERED, 1, ["unordered-identity"]),
        (Task, UNORDERED, 1, []),  # its key orders nothing
    ],
)
def test_keys_in_order_in_a_cluster(
    monkeypatch: pytest.MonkeyPatch, model: type[Any], options: Any, clustered: int, codes: list[str]
) -> None:
    monkeypatch.setattr(recorder.Variable, "getvalue", lambda *_: clustered)
    findings = found(options, of=model)
    assert [finding.code for finding in findings] == codes
    assert all("MODIFY (id GENERATED BY DEFAULT AS IDENTITY (ORDER))" in finding.fix for finding in findings)


# -- privileges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "missing"), [((23, 0, 0), ["DELETE"]), ((19, 0, 0), ["UPDATE", "DELETE"])])
def test_privileges_on_a_schema(version: tuple[int, ...], missing: list[str]) -> None:
    """Before 23ai there are none, nor the view that tells them."""
    answers = (
        ("sys_context", ("BOB",)),
        ("all_tab_privs", ("SELECT",)),
        ("session_privs", ("INSERT ANY TABLE",)),
        ("session_schema_privs", ("UPDATE ANY TABLE",)),
    )
    connection, server = connected(*answers, version=version)
    with connection:
        assert server.missing_privileges(connection, Task.__queue_spec__, []) == missing


@pytest.mark.parametrize(
    ("number", "message", "is_denied"),
    [
        (942, "table or view does not exist", True),
        (1031, "insufficient privileges", True),
        (41900, "missing EXECUTE privilege", True),
        (6550, "line 1, column 31:\nPLS-00201: identifier 'SYS.DBMS_UTILITY' must be declared", True),
        (6550, "line 1, column 31:\nPLS-00201: identifier 'DBMS_UTILITY' must be declared", True),
        (6550, "line 9, column 5:\nPLS-00201: identifier 'SQLQUEUE_ROOM' must be declared", False),
        (6550, 'line 1, column 12:\nPLS-00103: Encountered the symbol "END"', False),
    ],
)
def test_missing_privileges_are_recognized(number: int, message: str, is_denied: bool) -> None:
    """A block that does not compile is a fault of the library, unless an account may not see a package of Oracle's."""
    connection, _ = connected()
    told = oracledb.DatabaseError(SimpleNamespace(code=number, full_code=f"ORA-{number:05}", message=message))
    with connection:
        assert adapter_for(connection.dialect).connections.is_denied(DBAPIError(None, None, told)) is is_denied
