"""The number of rows that a call reads does not grow with the table, with or without planner statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sqlqueue import Claim, Status
from sqlqueue.diagnostics.drift import unserved_claims
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.paging import page
from sqlqueue.sql.rows import NEVER
from tests.suite.reading import DUE, FEW, HOUR, MANY, OLD, READY, Call, efforts, growing, key_of, stored, to_be_found
from tests.support.harness import Actor, Database
from tests.support.models import Mail, Parcel, Seat
from tests.support.polling import next_due
from tests.support.rows import TOMORROW, clock

MODELS = pytest.mark.parametrize("model", [Mail, Parcel, Seat], ids=lambda model: model.__name__)


def claim_ready(session: Actor, model: Any) -> Any:
    return session.claim_many(model, limit=READY)


def claim_due(session: Actor, model: Any) -> Any:
    return session.claim_many(model, limit=READY + DUE)


def claim_by_key(session: Actor, model: Any) -> Any:
    keys = model.__queue_spec__.primary_key
    return session.claim(model, *(key == value for key, value in zip(keys, key_of(model, 0), strict=True)))


CLAIMS: Mapping[str, Call] = {
    "claim ready tasks": claim_ready,
    "claim due tasks": claim_due,
    "claim by key": claim_by_key,
    "lock ready tasks": lambda session, model: session.claim_many(model, limit=READY, lease=None),
    "consume": lambda session, model: session.consume_many(model, limit=READY),
    "next_due": lambda session, model: session.run(next_due, model),
}
UPKEEP: Mapping[str, Call] = {
    "promote": lambda session, model: session.promote(model),
    "rescue": lambda session, model: session.rescue(model),
    "prune": lambda session, model: session.prune(model, HOUR, limit=OLD) if model is Mail else None,
}
WHY: Mapping[str, Call] = {
    "why the first": lambda session, model: session.why(Claim(model, key_of(model, 0), 0)),
    "why the last": lambda session, model: session.why(Claim(model, key_of(model, READY + DUE - 1), 0)),
}
PAGES: Mapping[str, Call] = {
    "page": lambda session, model: session.run(page, model, limit=READY),
    "page by error": lambda session, model: session.run(page, model, model.error == "no", scan=READY),
    "page of running tasks": lambda session, model: session.run(page, model, status=Status.RUNNING, scan=READY),
    "page of dead letters": lambda session, model: session.run(page, model, status=Status.DISCARDED, scan=READY),
    "overview": lambda session, model: session.overview(model, cap=READY, scan=READY),
    "stats by error": lambda session, model: session.stats(model, model.error == "no", cap=READY, scan=READY),
    "errors": lambda session, model: session.errors(model, cap=READY, scan=READY),
}
OF_TOPIC: Mapping[str, Call] = {
    "claim ready tasks of a topic": lambda session, _: session.claim_many(Mail, Mail.topic == "a", limit=READY),
    "claim due tasks of a topic": lambda session, _: session.claim_many(Mail, Mail.topic == "a", limit=READY + DUE),
    "next_due of a topic": lambda session, _: session.run(next_due, Mail, Mail.topic == "a"),
    "claim from a topic with nothing in it": lambda session, _: session.claim(Mail, Mail.topic == "z"),
}


def in_the_way(db: Database, model: Any, start: int, number: int) -> None:
    """Insert rows that calls must not read: just finished, scheduled for later, running, adopted."""
    now = clock(db)
    others = [
        *[{"status": "completed", "available_at": now, "finished_at": now}] * number,
        *[{"status": "scheduled", "available_at": TOMORROW}] * number,
        *[{"status": "running", "available_at": TOMORROW, "attempt": 1}] * (number // 10),
        *[{"status": "completed", "available_at": NEVER}] * number,
    ]
    stored(db, model, start, others)


@MODELS
@pytest.mark.requires("statistics")
def test_the_rows_read_do_not_grow(sync_db: Database, counted: Callable[[Any], None], model: Any) -> None:
    calls = {**CLAIMS, **UPKEEP, **WHY, **PAGES, **(OF_TOPIC if model is Mail else {})}
    start = to_be_found(sync_db, model)
    in_the_way(sync_db, model, start, FEW)
    small = efforts(sync_db, model, calls)
    in_the_way(sync_db, model, start + 4 * FEW, MANY)
    assert growing(small, efforts(sync_db, model, calls)) == {}, "with a planner that knows nothing"
    counted(model)
    assert growing(small, efforts(sync_db, model, calls)) == {}, "with a planner that knows the table"
    with sync_db.engine.connect() as connection:
        assert list(unserved_claims(connection, adapter_for(connection.dialect), model.__queue_spec__)) == []
