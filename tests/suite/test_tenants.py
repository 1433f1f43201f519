"""A session that adds `with_loader_criteria` to its SELECTs, as applications with tenants do, sees only its own
tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, Integer, String, event
from sqlalchemy.orm import Mapped, Session, mapped_column, with_loader_criteria

from sqlqueue import QueueMixin, QueueOptions, RecurringMixin, TopicMixin, UniqueMixin
from sqlqueue.outbox import OutboxMixin, claim_messages
from tests.support.harness import Actor, Database
from tests.support.models import Base
from tests.support.polling import next_due
from tests.support.rows import rows

pytestmark = pytest.mark.sync_only


class HasTenant:
    tenant: Mapped[int] = mapped_column(Integer)


class Letterbox(HasTenant, UniqueMixin, TopicMixin, Base):
    __tablename__ = "letterbox"
    __queue__ = QueueOptions(max_attempts=1, retention=timedelta(0), partitions=("tenant",))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Round(HasTenant, RecurringMixin, Base):
    __tablename__ = "round"
    __queue__ = QueueOptions(max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Telegram(HasTenant, OutboxMixin, Base):
    __tablename__ = "telegram"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Tenanted(HasTenant, QueueMixin, Base):
    """A queue with single-table inheritance."""

    __tablename__ = "tenanted"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "tenanted"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20), default="tenanted")


class Subtenanted(Tenanted):
    __mapper_args__ = {"polymorphic_identity": "sub"}  # noqa: RUF012


def only_mine(session: Session, tenant: int) -> None:
    """The recipe of SQLAlchemy's documentation."""

    @event.listens_for(session, "do_orm_execute")
    def add_criteria(state: Any) -> None:
        if state.is_select and not state.is_column_load and not state.is_relationship_load:
            mine = with_loader_criteria(HasTenant, lambda cls: cls.tenant == tenant, include_aliases=True)
            state.statement = state.statement.options(mine)


@contextmanager
def tenant(db: Database, number: int = 7, **options: Any) -> Iterator[Actor]:
    with db.begin(**options) as actor:
        only_mine(actor.sync_session, number)
        yield actor


def fill(db: Database, model: Any, count: int = 3, *conditions: str, **columns: Any) -> None:
    """Insert the tasks of another tenant first, then ours."""
    given = rows(count, *conditions, **columns)
    db.insert(model, [{**row, "tenant": number} for number in (6, 7) for row in given])


def tenants(tasks: Any) -> list[int]:
    return sorted(task.tenant for task in tasks)


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("condition", ["ready", "expired"])
@pytest.mark.parametrize("where", [False, True])
def test_a_tenant_claims_only_its_own_tasks(db: Database, lease: Any, condition: str, where: bool) -> None:
    fill(db, Letterbox, 3, condition, topic="a", max_attempts=3)
    criteria = [Letterbox.topic == "a"] if where else []
    with tenant(db) as actor:
        tasks = actor.claim_many(Letterbox, *criteria, limit=6, lease=lease)
        assert tenants(tasks) == [7, 7, 7]
        actor.complete(tasks)
    with tenant(db, 6) as actor:
        assert tenants(actor.claim_many(Letterbox, limit=6)) == [6, 6, 6]


def test_each_tenant_has_its_own_turn(db: Database) -> None:
    fill(db, Letterbox)
    for number in (6, 7, 6, 7):
        with tenant(db, number) as actor:
            assert actor.claim(Letterbox).tenant == number


@pytest.mark.parametrize("model", [Tenanted, Subtenanted])
def test_classes_that_inherit(db: Database, model: Any) -> None:
    fill(db, Tenanted, kind="sub")
    with tenant(db) as actor:
        assert tenants(actor.claim_many(model, limit=6)) == [7, 7, 7]


def test_criteria_apply_to_messages(db: Database) -> None:
    fill(db, Telegram, payload={})
    with tenant(db) as actor:
        assert tenants(actor.run(claim_messages, Telegram, limit=6)) == [7, 7, 7]


def test_upkeep(db: Database) -> None:
    fill(db, Letterbox, 1, "scheduled")
    with tenant(db, 5) as actor:
        assert actor.run(next_due, Letterbox) is None
    with tenant(db) as actor:
        assert actor.promote(Letterbox, limit=9) == 1
    for model in (Letterbox, Round):
        fill(db, model, 1, "expired", max_attempts=1)
        with tenant(db) as actor:
            assert actor.rescue(model) == 1


def test_criteria_given_with_a_call(db: Database) -> None:
    fill(db, Letterbox)
    with db.begin() as actor:
        options = [with_loader_criteria(HasTenant, lambda cls: cls.tenant == 7)]
        assert actor.claim(Letterbox, options=options).tenant == 7
        assert actor.consume(Letterbox, options=options).tenant == 7
        plain = [with_loader_criteria(Letterbox, Letterbox.tenant == 7)]
        assert actor.claim(Letterbox, options=plain, lease=None).tenant == 7
        actor.rollback()


def test_a_listener_that_executes_statements_itself(db: Database) -> None:
    """Like listeners for sharding and caching."""
    fill(db, Letterbox)
    with db.begin() as actor:

        @event.listens_for(actor.sync_session, "do_orm_execute")
        def execute(state: Any) -> Any:
            return state.invoke_statement()

        only_mine(actor.sync_session, 7)
        assert tenants(actor.claim_many(Letterbox, limit=6)) == [7, 7, 7]


def test_pending_instances_are_claimed_too(db: Database) -> None:
    with tenant(db) as actor:
        actor.add(Letterbox(tenant=7))
        actor.add(Letterbox(tenant=6))
        assert tenants(actor.claim_many(Letterbox, limit=6)) == [7]
