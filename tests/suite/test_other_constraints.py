"""A violated unique constraint of the application is not blamed on the keys that `on_conflict` handles."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Identity, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import DuplicateTaskError, QueueMixin, UniqueMixin
from tests.support.harness import Database
from tests.support.models import Base
from tests.support.rows import count


class Badge(QueueMixin, Base):
    __tablename__ = "badge"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    slug: Mapped[str] = mapped_column(String(20), unique=True)


class Permit(UniqueMixin, Base):
    __tablename__ = "permit"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    slug: Mapped[str] = mapped_column(String(20), unique=True)


ANY: tuple[Any, ...] = ("ignore", "replace", "rerun")
OTHER = r"one of these tasks \(id 2\) violates another unique constraint of badge, whatever on_conflict says: roll back"
EITHER = (
    r"another unfinished Permit has the unique_key of one of these tasks \(unique_key 'b'\), or it violates another"
    r" unique constraint of permit, whatever on_conflict says: roll back"
)


def refused(db: Database, model: Any, row: dict[str, Any], how: str, *, as_rows: bool) -> str:
    with db.session() as actor, pytest.raises(DuplicateTaskError) as duplicate:
        actor.enqueue(*((model, [row]) if as_rows else (model(**row),)), on_conflict=how)
    assert {name for key in duplicate.value.keys for name in key} <= row.keys()
    return str(duplicate.value)


@pytest.mark.parametrize("as_rows", [False, True], ids=["instance", "rows"])
@pytest.mark.parametrize(
    ("model", "mine", "other", "said"),
    [
        (Badge, {"id": 1}, {"id": 2}, OTHER),
        (Permit, {"unique_key": "a"}, {"unique_key": "b"}, EITHER),
    ],
    ids=["primary", "unique"],
)
def test_another_constraint(db: Database, model: Any, mine: Any, other: Any, said: str, as_rows: bool) -> None:
    with db.begin() as actor:
        actor.enqueue(model(slug="s", **mine))
    for how in ANY:
        assert re.fullmatch(said, refused(db, model, {"slug": "s", **other}, how, as_rows=as_rows))
    text = refused(db, model, {"slug": "s", **other}, "raise", as_rows=as_rows)
    assert (
        f"exists, or one of these rows violates another unique constraint of {model.__tablename__}: roll back" in text
    )
    assert "then give other values, or, if it is the key that exists, choose on_conflict=" in text
    for how in ANY:
        with db.begin() as actor:
            actor.enqueue(model, [{"slug": "s", **mine}], on_conflict=how)  # this is the row itself
    assert count(db, model) == 1


def test_without_any_key_no_option_helps(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Permit, [{"slug": "s"}])
    text = refused(db, Permit, {"slug": "s"}, "raise", as_rows=True)
    assert text.endswith("has the same values as this Permit in a unique key: roll back, and give it other values")
