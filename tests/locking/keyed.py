"""Tasks enqueued with a key that another task may have, concurrently with claims and settlements of that task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.locking.interleaving import COMMIT, Script, Step
from tests.locking.steps import COMPLETE, FAIL, Scenario, claim, rows_of
from tests.support.models import Document, Listing


def _enqueue(how: Any, model: Any, *rows: dict[str, Any]) -> Step:
    """Enqueue tasks; an insert may wait for rows with its keys, but for no others."""
    name = next(iter(rows[0]))
    keys = {row[name] for row in rows}
    return Step(
        how,
        lambda session, _: session.enqueue(model, [dict(row) for row in rows], on_conflict=how),
        matches=lambda row: row[name] in keys or row.get("former_key") in keys,
        keeps_to_its_rows=True,
    )


def _by_primary_key(how: Any) -> Callable[[], Sequence[Script]]:
    documents = [{"id": "b", "version": 7}, {"id": "new", "version": 7}]
    return lambda: [
        (_enqueue(how, Document, *documents), COMMIT),
        (claim(Document, limit=2), COMPLETE, COMMIT),
        (_enqueue(how, Document, *documents), COMMIT, claim(Document, lease=None), FAIL, COMMIT),
    ]


def _by_unique_key(how: Any) -> Callable[[], Sequence[Script]]:
    """Enqueue by unique key while the task with that key is claimed and completed, which releases the key."""
    listings = [{"unique_key": "b", "version": 7}, {"unique_key": "new", "version": 7}]
    return lambda: [
        (_enqueue(how, Listing, *listings), COMMIT),
        (claim(Listing, limit=2), COMMIT, COMPLETE, COMMIT),
        (_enqueue(how, Listing, *listings), COMMIT, claim(Listing, lease=None), COMPLETE, COMMIT),
    ]


def _by_both(how: Any) -> Callable[[], Sequence[Script]]:
    """Enqueue rows with both keys; an engine's upsert handles only one of them."""
    listing = {"id": 2, "unique_key": "b", "version": 7}
    return lambda: [
        (_enqueue(how, Listing, listing), COMMIT),
        (claim(Listing, limit=2), COMPLETE, COMMIT),
        (_enqueue(how, Listing, listing), COMMIT),
    ]


_DOCUMENTS = [{**row, "id": key} for row, key in zip(rows_of(3), "abc", strict=True)]
_LISTINGS = [
    {"id": 1_000 + n, "unique_key": key, "available_at": row["available_at"]}
    for n, (row, key) in enumerate(zip(rows_of(3), "abc", strict=True))
]
_KINDS = ("ignore", "replace", "rerun")
SCENARIOS = {
    **{f"{how} by primary key": Scenario(Document, _DOCUMENTS, _by_primary_key(how)) for how in _KINDS},
    **{f"{how} by unique key": Scenario(Listing, _LISTINGS, _by_unique_key(how)) for how in _KINDS},
    **{f"{how} by both keys": Scenario(Listing, rows_of(3, unique_key="abc"), _by_both(how)) for how in _KINDS},
}
