"""Revisions are written for the engines that the project names, so that one can read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import alembic
import pytest
from sqlalchemy import Identity, MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ArgumentError, HistoryMixin, JobMixin, QueueMixin, QueueOptions, StageMixin
from sqlqueue.alembic import MigrationOptions
from sqlqueue.dialects import BUILT_IN
from sqlqueue.outbox import OutboxMixin
from tests.migrations.project import Project

EVERYWHERE = sorted(make().name for make in BUILT_IN)
TEMPLATE = Path(alembic.__file__).parent / "templates" / "generic" / "script.py.mako"


def invoice(*mixins: Any, table: str = "invoice", **options: Any) -> MetaData:
    class Base(DeclarativeBase):
        metadata = MetaData()

    class Invoice(*mixins, Base):  # type: ignore[misc]
        __tablename__ = table
        __queue__ = QueueOptions(**options)

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        customer: Mapped[str] = mapped_column(String(20))

    Base.metadata.info["kept"] = Invoice  # an unreferenced class would be garbage-collected
    return Base.metadata


def project(directory: Path, metadata: MetaData, **options: Any) -> Project:
    """Return a project on SQLite whose table exists."""
    made = Project(
        directory=directory / "alembic",
        metadata=invoice(table=next(iter(metadata.tables))),
        url=f"sqlite:///{directory / 'here.db'}",
        plugin=True,
    )
    made.create()
    return made.using(metadata).configured(sqlqueue=MigrationOptions(**options))


def test_a_table_on_postgresql_is_adopted_in_few_lines(tmp_path: Path) -> None:
    made = project(tmp_path, invoice(QueueMixin), engines=["postgresql"])
    (made.directory / "script.py.mako").write_text(TEMPLATE.read_text())
    lines = made.revise("adopt").read_text().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) < 120
    body = lines[next(number for number, line in enumerate(lines) if "auto generated" in line) + 1 :]
    assert body[0].lstrip().startswith("# The existing rows of 'invoice' become completed")
    for other in ("mysql", "mssql", "oracle", "sqlite"):
        assert not any(other in line for line in lines)


@pytest.mark.parametrize(
    ("engines", "batch"),
    [(["mysql"], False), (["sqlite"], False), (EVERYWHERE, False), (EVERYWHERE, True)],
    ids=["mysql", "sqlite", "everywhere", "batch"],
)
def test_lines_are_short_on_every_engine(tmp_path: Path, engines: list[str], batch: bool) -> None:
    pytest.importorskip("sqlalchemy_cockroachdb")
    options = {"engines": engines, "concurrently": True, "postgresql_storage": True}
    made = project(tmp_path, invoice(JobMixin, StageMixin, table="invoices_of_customers", stages=("a", "b")), **options)
    made = made.configured(render_as_batch=batch)
    adopting = made.revise("adopt").rename(tmp_path / "adopt.py")  # the next one is generated from the same tables
    new = invoice(OutboxMixin, table="messages_of_invoices")

    class Base(DeclarativeBase):
        metadata = new

    class History(HistoryMixin, Base):
        __tablename__ = "history_of_invoices"

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    for script in (adopting, made.using(new).revise("create")):
        text = script.read_text()
        compile(text, script.name, "exec")
        assert [line for line in text.splitlines() if len(line) >= 120] == []
        assert "sqlqueue" not in text


def test_what_differs_between_engines_is_defined_once(tmp_path: Path) -> None:
    script = project(tmp_path, invoice(QueueMixin), engines=("mysql", "postgresql")).revise("adopt").read_text()
    head, _, body = script.partition("def upgrade")
    for name in ("datetime_type", "unicode_200_type", "utc_now", "never"):
        assert head.count(f"\n{name} = ") == 1
        assert name in body
    assert head.rindex("\nimport ") < head.index("datetime_type = ")
    assert "with_variant" not in body
    assert "sqlite" not in script


@pytest.mark.parametrize("named", [("postgresql",), ("mysql", "postgresql")])
def test_a_revision_for_other_engines_refuses(tmp_path: Path, named: tuple[str, ...]) -> None:
    made = project(tmp_path, invoice(QueueMixin), engines=named)
    made.revise("adopt")
    with pytest.raises(NotImplementedError, match=f"for {', '.join(named)} only: set MigrationOptions"):
        made.upgrade()


def test_a_new_queue_is_created_for_the_connected_engine(tmp_path: Path) -> None:
    made = project(tmp_path, invoice())
    script = made.using(invoice(QueueMixin, table="letter")).revise("create").read_text()
    assert "with_variant" not in script
    assert "postgresql_where" not in script
    assert "if op.get_context().dialect.name != 'sqlite'" in script


@pytest.mark.parametrize("engines", ["postgresql", ["postgres"]])
def test_engines_that_are_unknown_are_rejected(engines: Any) -> None:
    with pytest.raises(ArgumentError, match=r"engines=.*postgres.*names of dialects: cockroachdb, mariadb, mssql"):
        MigrationOptions(engines=engines)
