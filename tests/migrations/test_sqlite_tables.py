"""Revisions change tables on SQLite in place: rows that refer to them, triggers and indexes stay."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Engine, ForeignKey, Identity, MetaData, NullPool, Table, create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import QueueMixin, QueueOptions, StageMixin, UniqueMixin
from sqlqueue.dialects.sqlite import defaults_function, setting_defaults
from tests.migrations.project import Project

# what SQLAlchemy does not reflect: AUTOINCREMENT, a collation, a condition, an index on an expression, triggers
_TABLE = """
CREATE TABLE "Invoice" (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    customer VARCHAR(100) COLLATE NOCASE NOT NULL CHECK (customer <> ',' AND length(customer) < 9) DEFAULT 'completed'
);
CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, invoice_id INTEGER REFERENCES "Invoice" (id) {action});
CREATE UNIQUE INDEX invoice_customer ON "Invoice" (lower(customer));
CREATE TABLE audit (customer VARCHAR(100));
CREATE VIEW customers AS SELECT customer FROM "Invoice";
CREATE TRIGGER "audit "" it" AFTER UPDATE ON "Invoice" BEGIN INSERT INTO audit VALUES (new.customer); END;
CREATE TRIGGER deleted BEFORE DELETE ON "Invoice" BEGIN INSERT INTO audit VALUES (old.customer || ' deleted'); END;
INSERT INTO "Invoice" (customer) VALUES ('Ada'), ('Bob'), ('gone');
DELETE FROM "Invoice" WHERE customer = 'gone';
DELETE FROM audit;
INSERT INTO line VALUES (1, 1), (2, 1), (3, 2);
"""
Application: TypeAlias = Callable[..., "Shop"]


def models(*mixins: Any, **options: Any) -> MetaData:
    class Base(DeclarativeBase):
        metadata = MetaData()

    class Invoice(*mixins, Base):  # type: ignore[misc]
        __tablename__ = "Invoice"
        __queue__ = QueueOptions(**options)

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        customer: Mapped[str]

    class Line(Base):
        __tablename__ = "line"

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        invoice_id: Mapped[int | None] = mapped_column(ForeignKey(Invoice.id))

    Base.metadata.info["kept"] = Invoice, Line  # unreferenced classes would be garbage-collected
    return Base.metadata


class Shop:
    """An application's database, and the project that migrates it."""

    def __init__(self, directory: Path, action: str, **options: Any) -> None:
        self.path = directory / "shop.db"
        with closing(self.connect()) as connection:
            connection.executescript(_TABLE.format(action=action))
        self.project = Project(
            directory=directory / "alembic",
            metadata=models(),
            url=f"sqlite:///{self.path}",
            plugin=True,
            options=options,
        )

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def query(self, statement: str) -> list[Any]:
        with closing(self.connect()) as connection:
            return connection.execute(statement).fetchall()

    def becomes(self, metadata: MetaData) -> None:
        self.project = self.project.using(metadata)
        self.project.migrate()

    def insert(self, customer: str) -> None:
        with closing(self.connect()) as connection, connection:
            connection.execute('INSERT INTO "Invoice" (customer) VALUES (?)', [customer])

    def dump(self) -> list[str]:
        """Return everything in the database."""
        with closing(self.connect()) as connection:
            return list(connection.iterdump())

    def own(self) -> Mapping[str, Any]:
        """Return everything that is not the queue's."""
        return {
            "rows": self.query('SELECT id, customer FROM "Invoice" WHERE id < 4 ORDER BY id'),
            "children": self.query("SELECT * FROM line ORDER BY id"),
            "triggered": self.query("SELECT * FROM audit"),
            "objects": self.query(
                "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT IN ('Invoice', 'plain_version')"
                " AND name NOT LIKE 'ix_Invoice_%' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            ),
        }


@contextmanager
def _connecting(*pragmas: str, begins: bool) -> Iterator[None]:
    """Make all connections execute `pragmas`, and if `begins`, begin transactions before DDL, as SQLAlchemy advises."""

    def connected(connection: Any, _: object) -> None:
        if begins:
            connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    listeners = [("connect", connected), *([("begin", begun)] if begins else [])]
    for name, listener in listeners:
        event.listen(Engine, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(Engine, name, listener)


@pytest.fixture(params=["driver", "explicit"])
def begins(request: pytest.FixtureRequest) -> bool:
    return str(request.param) == "explicit"


pytestmark = pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")


@pytest.mark.parametrize(
    ("action", "enforced", "batch", "begins"),
    [
        ("ON DELETE CASCADE", "ON", False, False),
        ("ON DELETE CASCADE", "ON", True, True),
        ("ON DELETE SET NULL", "ON", True, False),
        ("ON DELETE SET NULL", "ON", False, True),
        ("", "ON", True, False),  # a row with children cannot be deleted
        ("", "ON", False, True),
        ("ON DELETE CASCADE", "OFF", True, False),
    ],
)
def test_nothing_that_belongs_to_the_table_is_lost(
    tmp_path: Path, action: str, enforced: str, batch: bool, begins: bool
) -> None:
    with _connecting(f"foreign_keys = {enforced}", begins=begins):
        shop = Shop(tmp_path, action, render_as_batch=batch)
        before, first = shop.own(), shop.query("SELECT sql FROM sqlite_master WHERE name = 'Invoice'")
        steps = [
            models(QueueMixin),
            models(QueueMixin, max_attempts=9),
            models(QueueMixin, max_attempts=9, columns={"status": "state", "max_attempts": "tries"}),
            models(UniqueMixin, StageMixin, stages=("a", "b"), max_attempts=9, columns={"status": "state"}),
            models(StageMixin, stages=("c", "a"), max_attempts=9, columns={"status": "state"}),
            models(),
        ]
        for step in steps:
            shop.becomes(step)
            assert shop.own() == before
            shop.project.check()
        for _ in steps:
            shop.project.downgrade("-1")
            assert shop.own() == before
        assert shop.query("SELECT sql FROM sqlite_master WHERE name = 'Invoice'") == first
    assert shop.query("PRAGMA integrity_check") == [("ok",)]
    assert shop.query("PRAGMA foreign_key_check") == []
    shop.insert("new")
    assert shop.query("SELECT max(id) FROM Invoice") == [(4,)]  # 3 was used before
    for refused in (",", "ADA"):
        with pytest.raises(sqlite3.IntegrityError):
            shop.insert(refused)


def test_old_rows_keep_their_values_and_new_rows_get_the_present_defaults(tmp_path: Path, begins: bool) -> None:
    with _connecting("foreign_keys = ON", begins=begins):
        shop = Shop(tmp_path, "ON DELETE CASCADE")
        shop.becomes(models(QueueMixin))
        shop.insert("Cy")
        shop.becomes(models(QueueMixin, max_attempts=9))
        shop.insert("Dan")
    rows = shop.query('SELECT customer, status, max_attempts, created_at, available_at FROM "Invoice" ORDER BY id')
    assert [row[:3] for row in rows] == [
        ("Ada", "completed", 5),
        ("Bob", "completed", 5),
        ("Cy", "available", 5),
        ("Dan", "available", 9),
    ]
    assert [row[4][:4] == "9999" for row in rows] == [True, True, False, False]
    assert rows[0][3] <= rows[2][3] <= rows[3][3]


def test_open_connections_notice_the_new_default(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "")
    shop.becomes(models(QueueMixin))
    with closing(shop.connect()) as other:
        other.executescript('DROP TRIGGER "audit "" it"; DROP TRIGGER deleted')  # restoring them would be noticed
        other.execute("INSERT INTO Invoice (customer) VALUES ('Cy')")
        other.commit()
        shop.becomes(models(QueueMixin, max_attempts=9))
        other.execute("INSERT INTO Invoice (customer) VALUES ('Dan')")
        assert other.execute("SELECT max_attempts FROM Invoice WHERE id > 3").fetchall() == [(5,), (9,)]


def test_a_table_in_an_attached_database(tmp_path: Path) -> None:
    columns = [Column("n", server_default=text("9"))]
    code = defaults_function("op.") + setting_defaults(Table("my t", MetaData(), schema="it's"), columns)
    engine = create_engine(f"sqlite:///{tmp_path / 'here.db'}", poolclass=NullPool)
    with engine.begin() as connection:
        for statement in (
            f"""ATTACH '{tmp_path / "there.db"}' AS "it's" """,
            """CREATE TABLE "it's"."my t" (id INTEGER PRIMARY KEY, n INTEGER DEFAULT 5)""",
            """CREATE TABLE "it's".fired (id INTEGER)""",
            """CREATE TRIGGER "it's".t AFTER UPDATE ON "my t" BEGIN INSERT INTO fired VALUES (new.id); END""",
            """INSERT INTO "it's"."my t" (id) VALUES (1)""",
        ):
            connection.exec_driver_sql(statement)
        exec(code, {"op": Operations(MigrationContext.configure(connection)), "re": re})
        connection.exec_driver_sql("""INSERT INTO "it's"."my t" (id) VALUES (2)""")
        assert connection.exec_driver_sql("""SELECT * FROM "it's"."my t" """).all() == [(1, 5), (2, 9)]
        assert connection.exec_driver_sql("""SELECT * FROM "it's".fired""").all() == []
        connection.exec_driver_sql("""UPDATE "it's"."my t" SET n = 6 WHERE id = 2""")
        assert connection.exec_driver_sql("""SELECT * FROM "it's".fired""").all() == [(2,)]


def test_a_column_that_does_not_exist_is_not_passed_over(tmp_path: Path) -> None:
    columns = [Column(name, server_default=text("9")) for name in ("n", "m")]
    code = defaults_function("op.") + setting_defaults(Table("t", MetaData()), columns)
    engine = create_engine(f"sqlite:///{tmp_path / 'some.db'}", poolclass=NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER DEFAULT 5, M INTEGER DEFAULT 5)")
        with pytest.raises(RuntimeError, match="cannot change the defaults of n, m in t"):
            exec(code, {"op": Operations(MigrationContext.configure(connection)), "re": re})


def test_a_default_found_by_alembic_itself_is_changed_in_place(tmp_path: Path) -> None:
    with _connecting("foreign_keys = ON", begins=False):
        shop = Shop(tmp_path, "ON DELETE CASCADE", render_as_batch=True, compare_server_default=True)
        before = shop.own()
        shop.project = shop.project.configured(include_object=lambda item, name, *_: name != "customer")
        shop.becomes(models(QueueMixin))
        shop.becomes(models(QueueMixin, max_attempts=9))
        assert shop.own() == before
        shop.project.check()


def test_a_failed_upgrade_changes_nothing(tmp_path: Path, begins: bool) -> None:
    with _connecting("foreign_keys = ON", begins=begins):
        shop = Shop(tmp_path, "ON DELETE CASCADE")
        shop.project = shop.project.using(models(QueueMixin))
        shop.project.revise()
        with closing(shop.connect()) as connection:
            connection.execute("CREATE INDEX ix_Invoice_due ON audit (customer)")  # in the way of the last operation
        shop.project.upgrade("base")  # creates the version table
        before = shop.dump()
        with pytest.raises(OperationalError, match="index ix_Invoice_due already exists"):
            shop.project.upgrade()
        assert shop.dump() == before
        with closing(shop.connect()) as connection:
            connection.execute("DROP INDEX ix_Invoice_due")
        shop.project.upgrade()
        shop.project.check()


def test_a_failed_downgrade_changes_nothing(tmp_path: Path, begins: bool) -> None:
    with _connecting("foreign_keys = ON", begins=begins):
        shop = Shop(tmp_path, "")
        shop.becomes(models(QueueMixin))
        with closing(shop.connect()) as connection:
            connection.execute("CREATE VIEW waiting AS SELECT id, attempt FROM Invoice WHERE status = 'available'")
        before = shop.dump()
        with pytest.raises(OperationalError, match="error in view waiting"):
            shop.project.downgrade("-1")
        assert shop.dump() == before


def test_a_definition_that_is_not_understood_is_left_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "")
    shop.becomes(models(QueueMixin))
    with closing(shop.connect()) as connection:
        connection.executescript(
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'max_attempts INTEGER DEFAULT 5',"
            " 'max_attempts INTEGER CHECK (max_attempts IN (5, 9)) DEFAULT 5'); PRAGMA writable_schema = RESET;"
        )
    before = shop.dump()
    with pytest.raises(RuntimeError, match="cannot change the defaults of max_attempts in Invoice"):
        shop.becomes(models(QueueMixin, max_attempts=9))
    assert shop.dump() == before


def test_a_script_cannot_change_defaults(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "")
    shop.project = shop.project.using(models(QueueMixin))
    shop.project.revise()
    with pytest.raises(NotImplementedError, match="run the upgrade without --sql"):
        shop.project.upgrade(sql=True)


def test_an_upgrade_whose_version_cannot_be_stored_changes_nothing(tmp_path: Path, begins: bool) -> None:
    with _connecting("foreign_keys = ON", begins=begins):
        shop = Shop(tmp_path, "ON DELETE CASCADE")
        shop.becomes(models(QueueMixin))
        with closing(shop.connect()) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE UPDATE ON plain_version BEGIN SELECT RAISE(ABORT, 'not now'); END"
            )
        shop.project = shop.project.using(models(QueueMixin, max_attempts=9))
        shop.project.revise()
        before = shop.dump()
        with pytest.raises(IntegrityError, match="not now"):
            shop.project.upgrade()
        assert shop.dump() == before
        with closing(shop.connect()) as connection:
            connection.execute("DROP TRIGGER refuse")
        shop.project.upgrade()
        shop.project.check()
        shop.project.downgrade()  # two revisions, each in a transaction of its own
        assert shop.query("SELECT * FROM plain_version") == []
        shop.project.upgrade()
        shop.project.check()
