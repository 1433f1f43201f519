"""Partitioned tables: a claim locks only the rows that it takes, and none before them in any partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Identity, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqlqueue
from sqlqueue import QueueMixin
from tests.support.harness import Database
from tests.support.rows import contenders, ids, rows

pytestmark = pytest.mark.requires("partitions_sql")

KINDS = ("HASH (id) PARTITIONS 4", "KEY (id) PARTITIONS 8", "RANGE (id) {ranges}")
RANGES = "(PARTITION a VALUES LESS THAN (8), PARTITION b VALUES LESS THAN (15), PARTITION c VALUES LESS THAN MAXVALUE)"


def partitioned(kind: str) -> type[Any]:
    """Return a model that declares its table as partitioned in this way."""

    class Apart(DeclarativeBase):
        pass

    class Parted(QueueMixin, Apart):
        __tablename__ = "parted"
        __table_args__ = {f"{name}_partition_by": kind for name in ("mysql", "mariadb")}  # noqa: RUF012

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        number: Mapped[int] = mapped_column(default=0)

    return Parted


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, sync_db: Database) -> Iterator[Any]:
    parted = partitioned(request.param.format(ranges=RANGES))
    parted.metadata.drop_all(sync_db.engine)
    parted.metadata.create_all(sync_db.engine)
    yield parted
    parted.metadata.drop_all(sync_db.engine)


@pytest.mark.parametrize("condition", ["ready", "retryable"])
def test_no_row_is_locked_that_is_not_taken(sync_db: Database, model: Any, condition: str) -> None:
    sync_db.insert(model, rows(30, condition))
    first, second = contenders(sync_db)
    for lease in ("default", None):
        for criteria in ([], [model.number == 0]):
            first.rollback()
            mine = first.claim_many(model, *criteria, limit=10, lease=lease)
            theirs = second.claim_many(model, *criteria, limit=30)
            assert [task.id for task in mine] == list(range(1, 11)), "across partitions, too, there is one order"
            assert len(ids([*mine, *theirs])) == 30
            second.rollback()
    first.complete(mine)
    first.commit()
    assert sync_db.committed.stats(model)["completed"] == 10


def test_an_undeclared_partitioning_is_reported(sync_db: Database, model: Any) -> None:
    class Plain(DeclarativeBase):
        pass

    class Silent(QueueMixin, Plain):
        __tablename__ = "parted"

        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        number: Mapped[int] = mapped_column(default=0)

    with sync_db.engine.connect() as connection:
        assert connection.scalar(text(sync_db.case.partitions_sql or "")) > 1
        assert "undeclared-partitions" in {each.code for each in sqlqueue.check(connection, Silent)}
        assert "undeclared-partitions" not in {each.code for each in sqlqueue.check(connection, model)}
