"""Queues of classes that inherit, and of models with relationships."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session, joinedload, selectinload

from tests.suite.kinds_of_models import Computed, Export, Folder, Import, Page, Scan
from tests.support.harness import Database
from tests.support.models import CreditNote, Invoice, Notice, Reminder


def test_single_table_inheritance(db: Database) -> None:
    with db.begin() as session:
        session.add_all([Notice(id=1), Reminder(id=2, about="milk"), Reminder(id=3, about="tea")])
    with db.begin() as session:
        assert session.claim(Reminder, Reminder.about == "tea").id == 3
        assert session.claim(Reminder).about == "milk"
        assert session.claim(Reminder) is None
        assert type(session.claim(Notice)) is Notice


def test_the_root_gives_instances_of_its_classes(db: Database) -> None:
    with db.begin() as session:
        session.add_all([Notice(id=1), Reminder(id=2, about="milk")])
        session.add_all([Invoice(id=1), CreditNote(id=2, amount=7)])
    with db.begin() as session:
        notices, invoices = session.claim_many(Notice, limit=5), session.claim_many(Invoice, limit=5)
        assert [type(task) for task in (*notices, *invoices)] == [Notice, Reminder, Invoice, CreditNote]
        assert session.run(lambda _: invoices[1].amount) == 7
        session.complete(notices)
        session.complete(invoices)


def test_joined_table_inheritance(db: Database) -> None:
    with db.begin() as session:
        session.add_all([Invoice(id=1), *(CreditNote(id=n, amount=n) for n in (2, 3, 4))])
    with db.begin() as session:
        note = session.claim(CreditNote, CreditNote.amount > 2, CreditNote.kind == "credit_note")
        assert (note.id, note.amount, note.status) == (3, 3, "running")
        assert session.claim(CreditNote, CreditNote.amount > 2, CreditNote.priority == 0).id == 4
        assert session.claim(Invoice, CreditNote.amount == 2).id == 2
        assert session.claim(CreditNote) is None
        session.complete(note)


def _scans(db: Database) -> None:
    with db.begin() as session:
        session.add(Folder(id=1, name="inbox"))
        session.add(Scan(id=1, folder_id=1, pages=[Page(), Page()]))
        session.flush()
        session.add(Scan(id=2, parent_id=1, pages=[Page()]))


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("options", [[], [selectinload(Scan.parent), joinedload(Scan.pages)]], ids=["own", "options"])
def test_relationships_that_load_with_the_row(db: Database, options: list[Any], lease: Any) -> None:
    _scans(db)
    with db.begin() as session:
        first, second = session.claim_many(Scan, limit=2, options=options, lease=lease)
        assert first.__dict__["folder"].name == "inbox"
        assert [len(scan.__dict__["pages"]) for scan in (first, second)] == [2, 1]
        assert second.__dict__["parent"] is first
        first.folder = None
        second.pages.append(Page())
        session.complete([first, second])
    with Session(db.engine) as session:
        assert session.get_one(Scan, 1).folder is None
        assert len(session.get_one(Scan, 2).pages) == 2


def test_only_the_mapper_sets_a_version(db: Database) -> None:
    with db.begin() as session:
        session.add(Computed(id=1))
    with db.begin() as session:
        task = session.claim(Computed)
        assert (task.version, task.doubled, "body" in task.__dict__) == (1, 2, False)
        task.body = "new"
        session.complete(task)
    with Session(db.engine) as session:
        stored = session.get_one(Computed, 1)
        assert (stored.version, stored.body, stored.status) == (2, "new", "completed")


def test_the_options_of_an_abstract_base(db: Database) -> None:
    with db.begin() as session:
        session.add_all([Export(id=1), Import(id=1)])
    with db.begin() as session:
        export, imported = session.claim(Export), session.claim(Import)
        assert (export.max_attempts, imported.max_attempts) == (2, 9)
        leases = [task.available_at - task.claimed_at for task in (export, imported)]
    assert [round(lease.total_seconds(), 2) for lease in leases] == [7, 300]
