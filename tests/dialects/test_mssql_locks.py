"""Checks every statement that the library sends to SQL Server against rules from its documentation about locks. The
rules are about text. No server has confirmed yet that they are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    and_,
    exists,
    literal_column,
    or_,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import Claim, ClaimLostError, QueueMixin, QueueSession
from sqlqueue.dialects import adapters
from sqlqueue.dialects.mssql import seek_by_key
from sqlqueue.kinds.limits import Free, Gate
from sqlqueue.sql import remove, write
from tests.dialects.recorder import recording_engine
from tests.dialects.test_lints import TABLES, pinned
from tests.dialects.test_pinned import ENGINES
from tests.support.models import Mail, Seat, Slot, Task, Visit

LEFT = {
    # application criteria that happen to select by key, to find rows that are then written by key
    *("Report.reschedule 2", "Report.unschedule 1", "Report.declare 3", "Report.declare(removing) 2"),
    *("Task.run_now 1", "Task.set_priority 1", "Task.set_time 1", "Listing.rerun(limit) 4"),  # likewise
    *("Task.page 4", "Task.page(state) 2", "Task.page(where) 3"),  # they lock nothing
    *("Task.page(sorted) 3", "Mail.page(sorted) 3"),  # likewise
    # latches that are read without locks, or that are locked already
    *("Flow.ripe 1", "Flow.count 3", "Flow.broken_below 2", "Flow.broken_links 1"),
    "Visit.consume 11",  # the session refreshes an instance that it has written
}

BESIDE = {"queue_pause", "fleet_worker", "past"}
"""Tables that are not queues."""


@pytest.fixture(scope="module")
def sent() -> dict[str, str]:
    return pinned("mssql")


def named(sql: str) -> Iterator[Table]:
    """Return the tables whose rows the statement selects by all columns of the primary key."""
    for name, table in TABLES.items():
        condition = r"(?<!NOT )\b{0}\.{1} (?:= :|IN \(:)|sqlqueue_wanted\.\w+ = {0}\.{1}\b"
        if all(re.search(condition.format(name, column.name), sql) for column in table.primary_key):
            yield table


def hints(sql: str, table: str) -> list[set[str]]:
    """Return the hints at each place where the statement reads or writes the table under its own name."""
    places = rf"(?:FROM|UPDATE|JOIN) {table}\b(?! AS)(?: WITH \(((?:[^()]|\([^()]*\))*)\))?"
    return [set((each or "").split(", ")) for each in re.findall(places, sql)]


def columns(sql: str, table: str) -> set[str]:
    return set(re.findall(rf"\b{table}\.(\w+)", sql))


def test_rows_selected_by_key_are_found_by_seeks(sent: dict[str, str]) -> None:
    by_key = {name: (sql, table.name) for name, sql in sent.items() for table in named(sql) if table.name not in BESIDE}
    assert len(by_key) > 100
    left = {name for name, (sql, table) in by_key.items() if not any("FORCESEEK" in each for each in hints(sql, table))}
    assert left == LEFT


def covers(table: Table, name: str | None, read: set[str]) -> list[str]:
    """Return the indexes, or the one of that name, that contain all columns that are read."""
    key = {column.name for column in table.primary_key}
    indexes = {str(index.name): {column.name for column in index.columns} | key for index in table.indexes}
    return [index for index, has in indexes.items() if name in (index, None) and read <= has]


def test_locks_are_taken_on_rows_and_not_on_the_keys_of_an_index(sent: dict[str, str]) -> None:
    locking = {name: sql for name, sql in sent.items() if "UPDLOCK" in sql}
    assert len(locking) > 50
    for name, sql in locking.items():
        (table,) = (each for each in TABLES if any("UPDLOCK" in given for given in hints(sql, each)))
        index = re.search(r"INDEX\((ix_\w+)\)", sql)
        assert covers(TABLES[table], index and index[1], columns(sql, table)) == [], name


def test_claims_that_one_index_does_not_serve_lock_by_key(sent: dict[str, str]) -> None:
    locking = {name: sql for name, sql in sent.items() if "UPDLOCK" in sql and "INDEX(ix_" in sql}
    assert locking
    for name, sql in locking.items():
        (table,) = (each for each in TABLES if any("UPDLOCK" in given for given in hints(sql, each)))
        index = re.search(r"INDEX\((ix_\w+)\)", sql)
        assert index, name
        condition = sql[sql.index("WHERE") : sql.index("ORDER BY")]
        assert covers(TABLES[table], index[1], columns(condition, table)) == [index[1]], name
        (limit,) = re.findall(r"SELECT TOP (\d+)", sql)
        assert int(limit) <= 25, name
        assert sql.endswith(" OPTION (MAXDOP 1)"), name  # no parallel scan, which would lock more
        assert "UPDATE picked" in sql, name  # with a lock alone, an entry would stay locked as long as a handler runs


def test_reads_by_a_filtered_index_contain_its_condition(sent: dict[str, str]) -> None:
    """Otherwise error 8622 is raised, because only an identical condition proves that the index contains all requested
    rows.  A further condition on a column of the predicate is allowed only if that is a column of the index:
    https://learn.microsoft.com/en-us/sql/relational-databases/indexes/create-filtered-indexes"""
    seen = set()
    for name, sql in sent.items():
        for hinted, condition in _readings(sql):
            seen.add(hinted.name)
            predicate = hinted.dialect_options["mssql"]["where"]
            compiled = predicate.compile(dialect=mssql.dialect(), compile_kwargs={"literal_binds": True})
            assert all(term in condition for term in str(compiled).split(" AND ")), name
            if "status" not in str(compiled):
                continue  # an index of all unfinished tasks is read for those of some states
            further = re.sub(r"coalesce\(\w+\.status, ''\)", "", condition.replace(str(compiled), ""))
            of_index = re.findall(r"\w+\.status = ('\w+')", further)
            assert further.count("status") == len(of_index) <= 1, name
            assert all(value in str(compiled) for value in of_index), name
            assert hinted.columns[0].name.endswith("status"), name
    assert seen >= {"ix_task_claim", "ix_task_due", "ix_mail_topic_claim", "ix_mail_topic_due", "ix_report_due"}


def test_reads_by_an_index_are_in_its_order(sent: dict[str, str]) -> None:
    """Otherwise the whole index is read and sorted; a merged SELECT names the index of each part."""
    for name, sql in sent.items():
        for hinted, condition in _readings(sql):
            order = re.findall(r"\w+\.(\w+)(?: DESC)?(?:, |\)|$)", condition[condition.index("ORDER BY") :])
            terms = [column.name for column in hinted.columns]
            fixed = [term for term in terms if re.search(rf"\b{term} (= |IS NULL)", condition) and term not in order]
            assert [term for term in terms if term not in fixed][: len(order)] == order, name


def _readings(sql: str) -> Iterator[tuple[Index, str]]:
    """Yield each index hint with the criteria and order that follow it."""
    sql = re.sub(r"\(SELECT (?:[^()]|\([^()]*\))*\)", "(a subquery without hints, which has an order of its own)", sql)
    reading = r"FROM (\w+) WITH \([^\n]*INDEX\((ix_\w+)\)\) \nWHERE ((?:(?!\nFROM )(?:.|\n))*? ORDER BY [^\n)]*)"
    for place in re.finditer(reading, sql):
        (index,) = (each for each in TABLES[place[1]].indexes if each.name == place[2])
        yield index, place[3]


def test_locking_reads_lock_rows_and_plain_reads_lock_nothing(sent: dict[str, str]) -> None:
    for name, sql in sent.items():
        for given in (each for table in TABLES for each in hints(sql, table) if each != {""}):
            locks = not given.isdisjoint({"UPDLOCK", "HOLDLOCK"})  # the latter shares a latch
            assert ("ROWLOCK" in given) == (not sql.startswith("SELECT") or locks), name
            assert "READPAST" not in given or "UPDLOCK" in given, name  # alone, it is rejected with row versions


def test_hints_stay_where_a_table_has_a_schema() -> None:
    class Own(DeclarativeBase):
        metadata = MetaData(schema="Own")

    class Errand(QueueMixin, Own):
        __tablename__ = "errand"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    engine, log = recording_engine(*ENGINES["mssql"])
    with QueueSession(engine) as session, suppress(ClaimLostError):
        session.claim(Errand)
        session.claim(Errand, lease=None)
        session.complete([Claim(Errand, (1,), 1, 7)])
    assert {text for sql in log for text in re.findall(r"(?:FROM|UPDATE) ((?!picked)\S*errand\S*)", sql)} == {
        "[Own].errand"
    }
    locking = "ROWLOCK, UPDLOCK, READPAST, FORCESEEK, INDEX(ix_errand_claim)"
    assert f"FROM [Own].errand WITH ({locking})" in log[0]
    assert all(re.search(r"FROM \[Own\]\.errand WITH \(.*FORCESEEK", sql) for sql in log if "errand" in sql)


KEYS: list[tuple[list[Any], str]] = [
    ([PrimaryKeyConstraint("id")], "FORCESEEK, INDEX(1)"),
    ([PrimaryKeyConstraint("id", mssql_clustered=True)], "FORCESEEK, INDEX(1)"),
    ([PrimaryKeyConstraint("id", name="pk_errand")], "FORCESEEK, INDEX(1)"),
    ([PrimaryKeyConstraint("id", name="Errand key", mssql_clustered=False)], "FORCESEEK, INDEX([Errand key])"),
    ([PrimaryKeyConstraint("id", name="pk"), Index("ix", "made", mssql_clustered=True)], "FORCESEEK, INDEX(pk)"),
    ([PrimaryKeyConstraint("id", name="pk"), UniqueConstraint("made", mssql_clustered=True)], "FORCESEEK, INDEX(pk)"),
    ([PrimaryKeyConstraint("id", mssql_clustered=False)], "FORCESEEK"),
]


@pytest.mark.parametrize(("items", "hints"), KEYS)
def test_rows_selected_by_key_are_found_through_the_index_of_the_primary_key(items: list[Any], hints: str) -> None:
    """Its index is the clustered one, unless the model says otherwise; without a name, it cannot be named."""
    table = Table("errand", MetaData(), Column("id", Integer), Column("made", Integer), *items)
    assert seek_by_key(table) == hints


def test_keys_of_several_columns_are_looked_up_in_a_table_of_values() -> None:
    keys, dialect = adapters()["mssql"].rows, mssql.dialect(paramstyle="named")
    seats, slots = Seat.__queue_spec__, Slot.__queue_spec__
    one, two = keys.key_in(seats, [("a", 1)]), keys.key_in(seats, [("a", 1), ("b", 2)])
    values = (
        "EXISTS (SELECT 1 FROM (VALUES (:line_1, :number_1), (:line_2, :number_2))"
        " AS sqlqueue_wanted (value_1, value_2)"
        " WHERE sqlqueue_wanted.value_1 = seat.line AND sqlqueue_wanted.value_2 = seat.number)"
    )
    assert str(one.compile(dialect=dialect)) == "seat.line = :line_1 AND seat.number = :number_1"
    assert str(two.compile(dialect=dialect)) == values
    assert str(and_(seats["attempt"] == 1, two).compile(dialect=dialect)) == f"seat.attempt = :attempt_1 AND ({values})"
    assert values in str(or_(seats["attempt"] == 1, two).compile(dialect=dialect))
    assert str((~two).compile(dialect=dialect)) == f"NOT ({values})"
    assert str(keys.key_in_parameters(seats, 2).compile(dialect=dialect)).count("sqlqueue_key") == 4
    # the values must not get the database's collation
    exact = "(VALUES (:slot_key_1 COLLATE Latin1_General_100_BIN2, :slot_number_1), (:slot_key_2 COLLATE Latin1"
    assert exact in str(keys.key_in(slots, [("a", 1), ("b", 2)]).compile(dialect=dialect))


def test_claims_are_compared_with_tables_of_values_for_composite_keys_only(sent: dict[str, str]) -> None:
    """A list of keys of one column is sought already; the OR of attempts and tokens beside it need not be."""
    assert [name for name in ("Task.complete(many)", "Task.heartbeat") if "VALUES" in sent[f"{name} 1"]] == []
    assert sent["Seat.complete(many) 1"].count("VALUES") == 2


def test_only_locks_that_are_kept_while_a_handler_runs_release_others() -> None:
    """That costs two statements."""
    engine, log = recording_engine(*ENGINES["mssql"])

    def savepoints(lease: timedelta | None) -> int:
        log.clear()
        with QueueSession(engine) as session:
            session.claim(Task, Task.number > 1, lease=lease)
            gate = Gate(session, adapters()["mssql"], Visit.__queue_spec__, lease)
            gate._known, gate._stocks[0].free["x"] = {"x"}, [Free(("x", 1), 1, 1)]
            gate._seen["x"] = datetime(2026, 1, 1, tzinfo=UTC)
            gate.hold({"x": 1})
        assert sum("UPDLOCK" in sql for sql in log) == 2
        saved = [number for number, sql in enumerate(log) if sql.startswith("SAVE TRANSACTION")]
        assert all("UPDLOCK" in log[number + 1] for number in saved)
        return len(saved)

    assert savepoints(timedelta(minutes=1)) == 0
    assert savepoints(None) == 2


def test_writes_name_their_index_in_a_from_clause() -> None:
    """After the table, an index hint is an error (1069)."""
    keys, dialect = adapters()["mssql"].rows, mssql.dialect(paramstyle="named")
    tasks = Task.__queue_spec__
    mine = and_(tasks.key((7,)), exists().where(Mail.id == Task.id))
    writing = keys.by_key(tasks, write(tasks, mine, [(tasks["priority"], literal_column("1"))]))
    deleting = keys.by_key(tasks, remove(tasks, mine)).returning(*tasks.primary_key)
    rows = (
        " \nFROM task WITH (ROWLOCK, FORCESEEK, INDEX(1)) \nWHERE task.id = :id_1 AND (EXISTS (SELECT * \nFROM mail"
        " \nWHERE mail.id = task.id)) AND task.number = :number_1"
    )
    assert str(writing.where(Task.number == 1).compile(dialect=dialect)) == f"UPDATE task SET priority=1{rows}"
    assert str(deleting.where(Task.number == 1).compile(dialect=dialect)) == f"DELETE FROM task OUTPUT deleted.id{rows}"


def test_attempts_are_deleted_by_key(sent: dict[str, str]) -> None:
    """In batches: the locks of a single statement would escalate, and every settlement would wait to add an attempt."""
    deleting = [sql for sql in sent.values() if sql.startswith("DELETE FROM past ")]
    assert len(deleting) == 2
    assert all("FROM past WITH (ROWLOCK, FORCESEEK, INDEX(1))" in sql and "past.id = :" in sql for sql in deleting)
