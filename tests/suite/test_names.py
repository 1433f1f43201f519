"""Names of tables that have to be quoted, in every kind of statement."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Identity, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqlqueue
from sqlqueue import LimitMixin, QueueOptions, SlotMixin, UniqueMixin
from tests.support.harness import Database

NAMES = [
    """50% off %s 100%% back`tick dou"ble sin'gle""",
    pytest.param("[brackets]", marks=pytest.mark.requires("names_brackets")),
    "MixedCase a :bind {0}  dash-ed",
    "select",
    "merge",  # a keyword of hints
]


class _Models:
    def __init__(self, name: str) -> None:
        class Base(DeclarativeBase):
            pass

        class Room(SlotMixin, Base):
            __tablename__ = f"{name} room"

        class Plain(UniqueMixin, Base):
            __tablename__ = name
            __queue__ = QueueOptions(on_complete="delete", retention=timedelta(0), partitions=("kind",))

            id: Mapped[int] = mapped_column(Identity(), primary_key=True)
            kind: Mapped[str] = mapped_column(String(20), default="")

        class Limited(LimitMixin, Base):
            __tablename__ = f"{name} limited"
            __queue__ = QueueOptions(slots=Room)

            id: Mapped[int] = mapped_column(Identity(), primary_key=True)

        self.metadata, self.plain, self.limited = Base.metadata, Plain, Limited


@pytest.fixture(params=NAMES)
def models(request: pytest.FixtureRequest, sync_db: Database) -> Iterator[_Models]:
    made = _Models(request.param)
    made.metadata.drop_all(sync_db.engine)
    made.metadata.create_all(sync_db.engine)
    yield made
    made.metadata.drop_all(sync_db.engine)


def test_every_statement(sync_db: Database, models: _Models) -> None:
    if sync_db.case.keeps_index_names:
        assert_healthy(sync_db, models)
    plain = models.plain
    with sync_db.begin() as actor:
        for on_conflict in ("raise", "ignore", "replace", "rerun"):
            actor.enqueue(plain, [{"unique_key": on_conflict, "kind": "a"}] * (on_conflict != "raise"))
            actor.enqueue(plain(unique_key=on_conflict + "!"), on_conflict=on_conflict)
            actor.enqueue(plain(unique_key="again"), on_conflict=on_conflict if on_conflict != "raise" else "ignore")
        if sync_db.case.copies:
            actor.enqueue(plain, [{"kind": "copied"}], copy=True)
    with sync_db.begin() as actor:
        tasks = actor.claim_many(plain, plain.kind == "a", limit=3)
        assert len(tasks) == 3
        actor.heartbeat(tasks)
        actor.complete(tasks[0])
        actor.complete(tasks[1:])
    with sync_db.begin() as actor:
        first, second = actor.claim_many(plain, limit=2, lease=None)
        actor.fail(first, "error", timedelta(0))
        actor.discard(second, "error")
    with sync_db.begin() as actor:
        assert actor.claim(plain, plain.id == first.id) is not None
        assert actor.consume(plain) is not None
        assert actor.retry(plain) == 1
        actor.rescue(plain)
        actor.cancel(plain)
        actor.errors(plain)
        actor.overview(plain)
        actor.timeline(plain)
        assert actor.prune(plain, limit=1) == 1
        actor.prune(plain)
        assert actor.stats(plain).total == 0
    sync_db.committed.enqueue(models.limited, [{"limit_key": "k"}, {"limit_key": "k"}])
    with sync_db.begin() as actor:
        actor.complete(actor.claim(models.limited))


def assert_healthy(sync_db: Database, models: _Models) -> None:
    with sync_db.engine.connect() as connection:
        for model in (models.plain, models.limited):
            findings = sqlqueue.check(connection, model)
            assert not [each for each in findings if each.severity in ("error", "warning")]
