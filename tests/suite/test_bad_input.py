"""Invalid arguments of claims, settlements and sessions raise an error that names them, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, aliased, load_only

import sqlqueue
from sqlqueue import ArgumentError, claim_of, hung
from tests.suite.refusals import NAIVE, Recorded, ascii_id, refused
from tests.suite.settlements import SETTLINGS, every_call
from tests.support.models import Account, Base, Ledger, Mail, Task

ENTITIES = [Ledger, Base, Task(), "Task", None, 7, object, Task.__table__, aliased(Task), select(Task)]
OF_A_MODEL: dict[str, Callable[[Any, Any], Any]] = {
    "claim": lambda s, model: s.claim(model),
    "claim_many": lambda s, model: s.claim_many(model, limit=3),
    "consume": lambda s, model: s.consume(model),
    "claiming": lambda s, model: s.claiming(model).__enter__(),
    "retry": lambda s, model: s.retry(model),
    "rescue": lambda s, model: s.rescue(model),
    "prune": lambda s, model: s.prune(model, timedelta(days=1)),
    "stats": lambda s, model: s.stats(model),
    "stats_by": lambda s, model: s.stats_by(model, Task.number),
    "overview": lambda s, model: s.overview(model),
    "timeline": lambda s, model: s.timeline(model),
    "hung": lambda s, model: hung(model),
    "errors": lambda s, model: s.errors(model),
    "enqueue": lambda s, model: s.enqueue(model, [{"id": 3}]),
}


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda entity: type(entity).__name__)
@pytest.mark.parametrize("operation", OF_A_MODEL)
def test_a_class_without_a_queue_is_rejected(session: Recorded, operation: str, entity: Any) -> None:
    with refused(session, "not a queue model", "QueueMixin"):
        OF_A_MODEL[operation](session, entity)


CLAIMS: list[tuple[str, dict[str, Any]]] = [
    *(("limit", {"limit": limit}) for limit in (0, -1, 1.5, "3", None, True)),
    *(("lease", {"limit": 1, "lease": lease}) for lease in (timedelta(0), -timedelta(seconds=1), 30, 1.5, "long")),
    *(("claimed_by", {"limit": 1, "claimed_by": name}) for name in ("", "x" * 201, 7)),
    *(("order_by", {"limit": 1, "order_by": order}) for order in ("name", ["name"])),
    *(("options", {"limit": 1, "options": options}) for options in (load_only(Task.name),)),
]


@pytest.mark.parametrize(("word", "arguments"), CLAIMS, ids=ascii_id)
def test_arguments_of_a_claim(session: Recorded, word: str, arguments: dict[str, Any]) -> None:
    with refused(session, word):
        session.claim_many(Task, **arguments)


@pytest.mark.parametrize(
    ("criterion", "word"),
    [
        (Account.name == "ada", "account"),
        (Mail.account_id == Account.id, "account"),
        (Ledger.task_id == Task.id, "ledger"),
        (True, "criterion"),
        ("name = 'a'", "criterion"),
        (text("1 = 1"), "criterion"),
        (None, "criterion"),
        (lambda task: task.id == 1, "criterion"),
        (Task.available_at < NAIVE, "naive"),
        (Task.available_at.in_([NAIVE]), "naive"),
    ],
    ids=ascii_id,
)
@pytest.mark.parametrize(
    "operation", ["claim", "consume", "retry", "cancel", "stats", "overview", "timeline", "errors"]
)
def test_criteria(session: Recorded, operation: str, criterion: Any, word: str) -> None:
    model = Mail if "account" in str(criterion) else Task
    with refused(session, word):
        getattr(session, operation)(model, criterion)


@every_call
def test_claims_of_two_models_are_rejected(session: Recorded, call: str) -> None:
    task, mail = session.claim(Task), session.claim(Mail)
    with refused(session, "Task", "Mail"):
        SETTLINGS[call](session, [task, mail])


@every_call
def test_a_claim_given_twice_is_rejected(session: Recorded, call: str) -> None:
    task = session.claim(Task)
    for twice in ([task, task], [task, claim_of(task)]):
        with refused(session, "twice"):
            SETTLINGS[call](session, twice)


@every_call
@pytest.mark.parametrize("nothing", [None, Ledger(), [None], [Ledger()], "Task"], ids=ascii_id)
def test_arguments_that_are_not_claims_are_rejected(session: Recorded, call: str, nothing: Any) -> None:
    """None is what a claim on an empty queue returns."""
    with refused(session):
        SETTLINGS[call](session, nothing)


@pytest.mark.parametrize(
    ("call", "arguments", "word"),
    [
        ("fail", ("no", 30), "retry_in"),
        ("fail", ("no", -timedelta(seconds=1)), "retry_in"),
        ("fail", (None,), "error"),
        ("fail", (7,), "error"),
        ("discard", (None,), "error"),
        ("snooze", (30,), "delay"),
        ("snooze", (-timedelta(seconds=1),), "delay"),
        ("snooze", (None,), "delay"),
        ("snooze", (datetime(2030, 1, 1, tzinfo=UTC),), "delay"),
        ("heartbeat", (30,), "lease"),
        ("heartbeat", (timedelta(0),), "lease"),
        ("complete", ("a result",), "result"),
        ("cancel", (Task.id == 1,), "criteria"),
    ],
)
def test_arguments_of_settling(session: Recorded, call: str, arguments: tuple[Any, ...], word: str) -> None:
    task = session.claim(Task)
    with refused(session, word):
        getattr(session, call)(task, *arguments)
    assert claim_of(task).attempt == 1


@pytest.mark.parametrize("age", [30, -timedelta(days=1), None, "30 days"])
def test_prune(session: Recorded, age: Any) -> None:
    with refused(session, "older_than"):
        session.prune(Task, age)


@pytest.mark.parametrize(
    "by", ["number", None, 7, Mail.topic, Mail.account, text("number"), Ledger.task_id], ids=ascii_id
)
def test_stats_by(session: Recorded, by: Any) -> None:
    model = Mail if by is Mail.account else Task
    with refused(session, f"not a column of {model.__name__}"):
        session.stats_by(model, by)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        *(({"bucket": bucket}, "bucket") for bucket in (3_600, timedelta(0), -timedelta(hours=1), None)),
        *(({"since": since}, "since") for since in (86_400, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC), None)),
        *(({"bucket": timedelta(hours=hours)}, "divides a day") for hours in (5, 25, 36)),
        ({"bucket": timedelta(seconds=8)}, "maximum is 10,000 buckets"),
        ({"bucket": timedelta(days=10_001)}, "as many days"),
        ({"bucket": timedelta(days=7), "since": timedelta(days=10_001)}, "as many days"),
    ],
    ids=ascii_id,
)
def test_timeline(session: Recorded, arguments: dict[str, Any], word: str) -> None:
    with refused(session, word):
        session.timeline(Task, **arguments)


@pytest.mark.parametrize("name", ["claim", "stats", "rescue", "errors", "consume", "retry"])
def test_asyncio_sessions_are_rejected(name: str) -> None:
    with pytest.raises(ArgumentError, match="run_sync"):
        getattr(sqlqueue, name)(AsyncSession(create_async_engine("sqlite+aiosqlite://")), Task)


@pytest.mark.parametrize("name", ["complete", "enqueue", "release", "cancel"])
def test_settling_with_an_async_session_is_rejected(name: str) -> None:
    with pytest.raises(ArgumentError, match="run_sync"):
        getattr(sqlqueue, name)(AsyncSession(create_async_engine("sqlite+aiosqlite://")), [])


def test_engines_and_connections_are_rejected() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        for wrong in (engine, connection, Session, None):
            with pytest.raises(ArgumentError, match="Session"):
                sqlqueue.claim(wrong, Task)  # type: ignore[arg-type]
    engine.dispose()
