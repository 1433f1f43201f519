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

from sqlqueue import QueueOptions, TopicMixin
from sqlqueue.outbox import OutboxMixin, claim_messages
from tests.support.harness import Actor, Database
from tests.support.models import Base
from tests.support.polling import next_due
from tests.support.rows import rows

pytestmark = pytest.mark.sync_only


class HasTenant:
    tenant: Mapped[int] = mapped_column(Integer)


class Telegram(HasTenant, OutboxMixin, Base):
    __tablename__ = "telegram"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Tenanted(HasTenant, TopicMixin, Base):
    """A queue with single-table inheritance."""

    __tablename__ = "tenanted"
    __queue__ = QueueOptions(partitions=("tenant",))
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


@pytest.mark.parametrize(("model", "condition"), [(Tenanted, "ready"), (Subtenanted, "expired")])
@pytest.mark.parametrize("lease", ["default", None])
def test_a_tenant_claims_only_its_own_tasks(db: Database, model: Any, lease: Any, condition: str) -> None:
    fill(db, Tenanted, 4, condition, kind="sub", topic="a", max_attempts=3)
    with tenant(db) as actor:
        tasks = actor.claim_many(model, limit=2, lease=lease)
        tasks += actor.claim_many(model, model.topic == "a", limit=6, lease=lease)
        assert tenants(tasks) == [7, 7, 7, 7]
        actor.complete(tasks)
    with tenant(db, 6) as actor:
        assert tenants(actor.claim_many(model, limit=6)) == [6, 6, 6, 6]


def test_criteria_apply_to_messages(db: Database) -> None:
    fill(db, Telegram, payload={})
    with tenant(db) as actor:
        assert tenants(actor.run(claim_messages, Telegram, limit=6)) == [7, 7, 7]


def test_the_time_of_the_next_task(db: Database) -> None:
    fill(db, Tenanted, 1, "scheduled")
    for number, due in ((5, None), (7, timedelta(0))):
        with tenant(db, number) as actor:
            assert actor.run(next_due, Tenanted) == due


def test_criteria_given_with_a_call(db: Database) -> None:
    fill(db, Tenanted)
    with db.begin() as actor:
        options = [with_loader_criteria(HasTenant, lambda cls: cls.tenant == 7)]
        assert actor.claim(Tenanted, options=options).tenant == 7
        assert actor.consume(Tenanted, options=options).tenant == 7
        plain = [with_loader_criteria(Tenanted, Tenanted.tenant == 7)]
        assert actor.claim(Tenanted, options=plain, lease=None).tenant == 7
        actor.rollback()


def test_a_listener_that_executes_statements_itself(db: Database) -> None:
    """Like listeners for sharding and caching."""
    fill(db, Tenanted)
    with db.begin() as actor:

        @event.listens_for(actor.sync_session, "do_orm_execute")
        def execute(state: Any) -> Any:
            return state.invoke_statement()

        only_mine(actor.sync_session, 7)
        assert tenants(actor.claim_many(Tenanted, limit=6)) == [7, 7, 7]
