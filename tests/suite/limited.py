"""Limited tasks, their claims, and the slots that these hold."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue import Claim, claim_of
from tests.support.harness import Database
from tests.support.models import Slot, Visit
from tests.support.rows import count

locks_rows = pytest.mark.requires("locks_rows")


def visits(db: Database, *keys: str | None, **columns: Any) -> None:
    """Numbered from 1."""
    first = count(db, Visit) + 1
    rows = [{"id": first + number, "limit_key": key, **columns} for number, key in enumerate(keys)]
    db.insert(Visit, rows)


def claim(db: Database, *where: Any, limit: int = 100) -> list[Claim]:
    return [claim_of(task) for task in db.committed.claim_many(Visit, *where, limit=limit)]


def held(db: Database) -> int:
    """Return the number of slots that are held."""
    return count(db, Slot, Slot.status == "running")


def set_limit(db: Database, limit: int, key: str = "a") -> None:
    db.committed.set_limit(Visit, key, limit)
