"""SQL Server without a server: the statements that are sent, and the handling of its errors and results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import DateTime, Engine, Identity, PrimaryKeyConstraint, Text, event, select
from sqlalchemy.dialects import mssql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    ArgumentError,
    QueueMixin,
    QueueSession,
    UnsupportedDialectError,
    UnsupportedIsolationError,
    member_of,
)
from sqlqueue.diagnostics.drift import misfits
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.mssql import is_narrow
from sqlqueue.sql import utcdefault
from tests.dialects.catalog import statements
from tests.dialects.recorder import answering, recording_engine
from tests.dialects.test_pinned import ENGINES, PINNED
from tests.support.flows import Page
from tests.support.models import Base, Chore, DataBase, Document, Listing, QueuePause, Report, Seat, Slot, Task


class ProgrammingError(Exception):
    """An error with the name of pyodbc's exception."""


def engine_of(version: tuple[int, ...] = (16, 0, 0, 0)) -> tuple[Engine, list[str]]:
    return recording_engine(ENGINES["mssql"][0], version)


# -- rows that are not counted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.pause(Task),
        lambda session: session.resume(Task),
        lambda session: session.prune(Report, timedelta(0)),
        lambda session: session.cancel(Task),
    ],
    ids=["pause", "resume", "prune", "cancel"],
)
def test_an_unknown_number_of_changed_rows_is_not_taken_for_one(call: Callable[[QueueSession], Any]) -> None:
    engine, _ = engine_of()

    @event.listens_for(engine, "before_cursor_execute")
    def uncounted(connection: Any, cursor: Any, *_: Any) -> None:
        cursor.rowcount = -1

    with QueueSession(engine) as session, pytest.raises(UnsupportedDialectError, match="NOCOUNT") as raised:
        call(session)
    assert raised.value.dialect == "mssql"


# -- which server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "asked"), [((12, 0, 2000, 8), 1), ((13, 0, 1601, 5), 0)])
def test_the_edition_is_queried_if_the_version_does_not_tell(version: tuple[int, ...], asked: int) -> None:
    engine, log = engine_of(version)
    answering(engine, "serverproperty", (5,))
    with QueueSession(engine) as session:
        session.claim(Task)
        session.claim(Task)
    assert sum("serverproperty" in statement for statement in log) == asked


SNAPSHOTS, NO_ROWS = ("sys.databases", ("my shop", True, False)), ("referencing_entities",)
STATE = "databasepropertyex"
TABLE = (
    *(NO_ROWS, ("allow_row_locks",), ("objectproperty(object_id", (1,)), ("has_perms_by_name", (1,))),
    *(("sys.indexes.type", (1, "pk")), ("collation_name",)),
)


def found(
    *answers: tuple[Any, ...], of: type[Any] | None = None, driver: str = "pyodbc"
) -> list[tuple[str, str, str, str]]:
    """Return the findings about the server, or about the table of a model, if statements are answered like this."""
    engine, _ = engine_of()
    engine.dialect.driver = driver
    for part, *rows in ((STATE, ("READ_WRITE", None, 5496)), SNAPSHOTS, *TABLE, *answers):
        answering(engine, part, *rows)
    with engine.connect() as connection:
        server = adapter_for(engine.dialect).inspection
        spec = None if of is None else of.__queue_spec__
        findings = (
            [*server.server_findings(connection)]
            if spec is None
            else [*server.table_findings(connection, spec), *server.key_findings(connection, spec)]
        )
        return [(finding.severity, finding.code, finding.message, finding.fix) for finding in findings]


@pytest.mark.parametrize("optimized", [None, 0])  # unknown before SQL Server 2025
def test_a_healthy_database_has_no_findings(optimized: int | None) -> None:
    assert found((STATE, ("READ_WRITE", optimized, 5496))) == []


@pytest.mark.parametrize(
    ("answer", "severity", "code", "told", "advised"),
    [
        (
            ("sys.databases", ("my shop", False, False)),
            *("error", "no-row-versions", "READ_COMMITTED_SNAPSHOT is off: "),
            "ALTER DATABASE [my shop] SET READ_COMMITTED_SNAPSHOT ON, with no other connections open",
        ),
        (
            ("sys.databases", ("my shop", True, True)),
            *("warning", "forced-parameters", "PARAMETERIZATION is FORCED: "),
            "ALTER DATABASE [my shop] SET PARAMETERIZATION SIMPLE",
        ),
        (
            (STATE, ("READ_WRITE", 1, 5496)),
            *("note", "optimized-locking", "optimized locking is on, "),
            "nothing, or, where the server allows it, ALTER DATABASE [my shop] SET OPTIMIZED_LOCKING = OFF",
        ),
        (
            (STATE, ("READ_WRITE", None, 5496 | 512)),
            *("error", "session-options", "NOCOUNT is on"),
            "SET NOCOUNT OFF on each new connection, or take 512 out of sp_configure 'user options'",
        ),
        (
            (STATE, ("READ_WRITE", None, 5496 | 16384)),
            *("warning", "session-options", "XACT_ABORT is on"),
            "SET XACT_ABORT OFF on each new connection, or take 16384 out of sp_configure 'user options'",
        ),
    ],
)
def test_a_database_with_other_settings(answer: Any, severity: str, code: str, told: str, advised: str) -> None:
    ((found_severity, found_code, message, fix),) = found(answer)
    assert (found_severity, found_code, fix) == (severity, code, advised)
    assert message.startswith(told)


def test_a_healthy_table_has_no_findings() -> None:
    assert found(of=Task) == []


def test_modules_whose_writes_filtered_indexes_refuse() -> None:
    ((severity, code, message, fix),) = found(("referencing_entities", ("dbo.sweep",), ("dbo.old",)), of=Task)
    assert (severity, code) == ("warning", "set-options")
    assert message.startswith("dbo.old, dbo.sweep had QUOTED_IDENTIFIER or ANSI_NULLS off")
    assert fix.startswith("SET QUOTED_IDENTIFIER ON")


def test_modules_that_write_are_sought_by_the_full_name_of_the_table() -> None:
    """Functions and views write nothing."""
    engine, _ = engine_of()
    asked: set[str] = set()

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.update(str(value) for value in parameters.values() if "referencing_entities" in statement)

    engine.dialect.default_schema_name = "my shop"
    with engine.connect() as connection:
        list(adapter_for(engine.dialect).inspection.table_findings(connection, Task.__queue_spec__))
    assert asked >= {"[my shop].task", "IsView", "IsScalarFunction", "IsInlineFunction", "IsTableFunction"}


def test_a_table_that_was_created_without_ansi_nulls() -> None:
    ((severity, code, _, fix),) = found(("objectproperty(object_id", (0,)), of=Task)
    assert (severity, code) == ("warning", "ansi-nulls")
    assert "SET ANSI_NULLS ON" in fix
    assert found(("objectproperty(object_id", (None,)), of=Task) == []  # where the property is unknown


def test_an_index_without_row_locks() -> None:
    indexes = ("ix_task_claim", False), ("my index", True), ("report", False)  # the last is not the queue's
    claims, key = found(("allow_row_locks", *indexes), of=Task)
    assert [each[:2] for each in (claims, key)] == [("error", "no-row-locks")] * 2
    assert "ix_task_claim" in claims[2]
    assert "my index" in key[2]
    assert key[3] == "ALTER INDEX [my index] ON task SET (ALLOW_ROW_LOCKS = ON)"


@pytest.mark.parametrize("number", [229, 297, 300])
def test_missing_permissions_are_recognized(number: int) -> None:
    told = ProgrammingError(
        "42000", f"[42000] [Microsoft][SQL Server]The permission was denied ({number}) (SQLExecDirectW)"
    )
    assert adapter_for(engine_of()[0].dialect).connections.is_denied(DBAPIError(None, None, told))


class Own(DeclarativeBase):
    pass


class Heap(QueueMixin, Own):
    __tablename__ = "heap"
    __table_args__ = (PrimaryKeyConstraint("id", name="Key of heap", mssql_clustered=False),)
    id: Mapped[int] = mapped_column(Identity())


class Unnamed(QueueMixin, Own):
    __tablename__ = "unnamed"
    __table_args__ = (PrimaryKeyConstraint("id", mssql_clustered=False),)
    id: Mapped[int] = mapped_column(Identity())


@pytest.mark.parametrize(
    ("model", "index", "severity"),
    [
        (Task, (1, "pk"), None),
        (Task, (2, "pk"), "error"),
        (Heap, (2, "Key of heap"), None),
        (Heap, (1, "Key of heap"), None),
        (Heap, (2, "pk"), "error"),
        (Unnamed, (2, "pk"), "warning"),
    ],
)
def test_a_primary_key_that_hints_do_not_name(model: Any, index: tuple[int, str], severity: str | None) -> None:
    findings = found(("sys.indexes.type", index), of=model)
    assert [(each, code) for each, code, *_ in findings] == ([] if severity is None else [(severity, "key-index")])
    number = "307 or 8622" if model is Task else "308"
    assert all(severity == "warning" or f"(error {number})" in message for _, _, message, _ in findings)
    for *_, fix in findings:
        assert fix.endswith("PrimaryKeyConstraint('id', name='pk', mssql_clustered=False)")


@pytest.mark.parametrize(
    ("model", "number", "fixes"),
    [
        (Task, 307, ["ALTER TABLE task ADD PRIMARY KEY CLUSTERED (id)"]),
        (Heap, 308, ["ALTER TABLE heap ADD CONSTRAINT [Key of heap] PRIMARY KEY NONCLUSTERED (id)"]),
        (Unnamed, 0, []),
    ],
)
def test_a_table_without_the_primary_key_that_hints_name(model: Any, number: int, fixes: list[str]) -> None:
    findings = found(("sys.indexes.type",), of=model)
    assert all(f"(error {number})" in message for _, _, message, _ in findings)
    assert [code for _, code, *_ in findings] == ["key-index"] * len(fixes)
    assert [fix for *_, fix in findings] == fixes


def test_no_subquery_begins_with_with() -> None:
    found = str(select(Page.id).where(member_of(Page, "import 7")).compile(dialect=mssql.dialect()))
    assert (found[:4], found.count("WITH")) == ("WITH", 1)


def test_narrow_keys_are_not_looked_up_by_index_with_pymssql() -> None:
    """It writes every text as a literal N'...'; text keys of the library are NVARCHAR."""
    own, windows = "SQL_Latin1_General_CP1_CI_AS", "Latin1_General_100_CI_AS"

    def codes(model: Any, column: str, collation: str, driver: str) -> list[str]:
        answers = (("collation_name", (column, collation)), ("databasepropertyex", (collation,)))
        return [code for _, code, *_ in found(*answers, of=model, driver=driver)]

    assert codes(Seat, "line", own, "pymssql") == ["narrow-key"]
    # from a wide text, the server derives a range of an index in a collation of Windows
    assert codes(Seat, "line", windows, "pymssql") == codes(Seat, "line", own, "pyodbc") == []
    assert codes(Slot, "slot_key", "Latin1_General_100_BIN2", "pymssql") == []


@pytest.mark.parametrize(
    ("model", "column", "collation", "codes"),
    [
        (Slot, "slot_key", "Latin1_General_100_BIN2", []),
        (Slot, "slot_key", "Latin1_General_CI_AS", ["key-collation"]),
        (Seat, "line", "Latin1_General_CI_AS", []),
        (Seat, "line", "Latin1_General_BIN2", ["key-collation"]),
        (Document, "id", "Latin1_General_CI_AS", []),
    ],
)
def test_columns_of_keys_with_another_collation(model: Any, column: str, collation: str, codes: list[str]) -> None:
    """Tables of values have the declared collation, or that of the database; a single column has none of them."""
    answers = (("collation_name", (column, collation)), ("databasepropertyex", ("Latin1_General_CI_AS",)))
    findings = found(*answers, of=model)
    assert [code for _, code, *_ in findings] == codes
    assert all(f"has the collation {collation} instead of Latin1_General_" in message for _, _, message, _ in findings)


@pytest.mark.parametrize(("model", "codes"), [(Report, ["missing-privilege"]), (Chore, []), (Task, [])])
def test_declared_keys_need_alter(model: type[Any], codes: list[str]) -> None:
    """SQLAlchemy sets IDENTITY_INSERT for them; a unique key needs none."""
    findings = found(("has_perms_by_name", (0,)), of=model)
    assert [code for _, code, _, _ in findings] == codes
    assert all("autoincrement=False" in fix for *_, fix in findings)


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "SNAPSHOT", "SERIALIZABLE"])
def test_levels_in_which_locked_rows_cannot_be_skipped_are_rejected(level: str) -> None:
    engine, log = engine_of()
    engine.dialect.default_isolation_level = level  # type: ignore[assignment]
    with QueueSession(engine) as session:
        session.execute(select(Task.id))
        log.clear()
        with pytest.raises(UnsupportedIsolationError):
            session.claim(Task)
    assert log == []


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_rows_without_conflicts_are_inserted_in_bulk(on_conflict: Any) -> None:
    engine, log = engine_of()
    answering(engine, "SELECT")
    rows = [{"unique_key": f"key {number}", "version": 1} for number in range(900)]
    with QueueSession(engine) as session:
        session.enqueue(Listing, rows, on_conflict=on_conflict)
    assert sum(sql.startswith("SELECT") for sql in log) == 3  # of 400 keys each
    assert sum(sql.startswith("INSERT") for sql in log) < 10


# -- tables with triggers ----------------------------------------------------------------------------------------------

_TRIGGERED = """
import json
import re
from tests.dialects.catalog import BASES, statements
from tests.dialects.test_mssql import engine_of
for base in BASES:
    for table in base.metadata.tables.values():
        table.implicit_returning = False
print(json.dumps(statements(*engine_of())))
"""


@pytest.fixture(scope="module")
def with_triggers() -> dict[str, str]:
    """The statements if every table has triggers; in a separate process, since statements are cached."""
    done = subprocess.run(
        [sys.executable, "-c", _TRIGGERED], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    sent: dict[str, str] = json.loads(done.stdout)
    return sent


def test_nothing_is_returned_from_a_table_with_triggers(with_triggers: dict[str, str]) -> None:
    """OUTPUT without INTO raises error 334 there."""
    assert [name for name, sql in with_triggers.items() if "OUTPUT" in sql] == []


@pytest.mark.parametrize("call", ["Task.complete", "Task.complete(many)"])
def test_claims_are_identified_before_a_table_with_triggers_is_written(
    with_triggers: dict[str, str], call: str
) -> None:
    """The number of changed rows does not identify them, not even one: the triggers' statements are counted as well."""
    locking, writing = (with_triggers[f"{call} {number}"] for number in (1, 2))
    assert locking.startswith("SELECT task.id, task.attempt \nFROM task WITH (ROWLOCK, UPDLOCK, FORCESEEK, INDEX(1))")
    assert "\nFROM task WITH (ROWLOCK, FORCESEEK, INDEX(1))" in writing
    assert locking[locking.index("WHERE") :] == writing[writing.index("WHERE") :]


# -- text --------------------------------------------------------------------------------------------------------------

ASCII = {"status", "queue_status", "trace_context"}
"""The mixins' columns that can contain only ASCII."""


def test_columns_that_may_hold_any_text_are_wide() -> None:
    narrow: set[str] = set()
    for base in (Base, DataBase):
        for mapper in (each for each in base.registry.mappers if hasattr(each.class_, "__queue_spec__")):
            columns = mapper.class_.__queue_spec__.columns.values()
            narrow |= {column.name for column in columns if is_narrow(column.type, mssql.dialect())}
    assert narrow <= ASCII
    assert [column.name for column in QueuePause.__table__.columns if is_narrow(column.type, mssql.dialect())] == []


OWN = {9, 16, 20, 50, 80, 100}
"""The lengths of `waits_when` and `status`, which hold words of the library, and of the VARCHAR columns of the tests'
models, which also have a Text."""


def test_text_for_wide_columns_is_sent_as_wide_and_nothing_as_null() -> None:
    """A parameter declared as VARCHAR loses characters outside the code page before it reaches the column.

    The driver would have to query the type of a NULL from the server, which Microsoft's driver does at a cost.  Rows of
    the history are inserted many at a time, some without an error, and so are latches, some without a latch above; a
    worker's row is written every ten seconds.
    """
    engine, log = engine_of()
    narrow: set[str] = set()
    null: set[str] = set()

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        binds = getattr(context.compiled, "binds", None) or {}
        typed = ((bind.type, name) for name, bind in binds.items() if is_narrow(bind.type, mssql.dialect()))
        narrow.update(name for kind, name in typed if not isinstance(kind, Text) and kind.length not in OWN)
        rows = [parameters] if isinstance(parameters, dict) else parameters
        if any(value is None for row in rows for value in row.values()):
            null.add(statement)

    statements(engine, log)
    # parameters of the library's own queries
    words = {"databasepropertyex", "has_perms_by_name", "objectproperty", "object_schema_name"}
    words |= {"dm_sql_referencing_entities", "referencing_class_desc"}
    assert {re.sub(r".* |_\d+$|\)s$", "", name) for name in narrow} == words
    with QueueSession(engine) as session:
        session.enqueue(Listing, [{"unique_key": "a", "version": None}], on_conflict="replace")
    rare = ("INSERT INTO past ", "INSERT INTO latch_of_flow ", "UPDATE fleet_worker ")
    assert {each for each in null if not each.startswith(rare)} == set()


def test_text_in_statements_is_ascii() -> None:
    pinned: dict[str, str] = json.loads((PINNED / "mssql.json").read_text())
    assert [name for name, sql in pinned.items() if not sql.isascii()] == []


# -- what is reflected -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moments", "codes"),
    [(mssql.DATETIME2(), set()), (mssql.DATETIME2(3), {"wrong-type"}), (mssql.DATETIME(), {"wrong-type"})],
)
def test_a_precision_that_is_not_reflected_is_not_missed(moments: Any, codes: set[str]) -> None:
    dialect, spec = mssql.dialect(), Task.__queue_spec__
    default = str(utcdefault().compile(dialect=dialect))
    live: list[Any] = []
    for column in spec.table.columns:
        kind: Any = column.type.dialect_impl(dialect)
        kind = getattr(kind, "impl_instance", kind)
        kind = moments if isinstance(kind, DateTime) else kind
        live.append({"name": column.name, "type": kind, "nullable": column.nullable, "default": default})
    assert {finding.code for finding in misfits(dialect, spec, live)} == codes


# -- keys that it considers equal -------------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
@pytest.mark.parametrize("model", [Document, Seat])
def test_a_key_with_a_trailing_blank_is_distinct(model: Any, on_conflict: Any) -> None:
    """Every collation considers it equal to the key without the blank, and the task would be dropped silently."""
    engine, log = engine_of()
    name = "id" if model is Document else "line"
    for blank in ("a ", " "):
        row = {name: blank} if model is Document else {name: blank, "number": 1}
        with QueueSession(engine) as session:
            for tasks in ((model, [{**row, name: "a"}, row]), (model(**row),)):
                with pytest.raises(ArgumentError, match=f"{name}='{blank}' ends in a space"):
                    session.enqueue(*tasks, on_conflict=on_conflict)
    assert not any("INSERT" in statement for statement in log)
