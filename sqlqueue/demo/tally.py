"""What the database says of a run: counted, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from sqlqueue import ErrorGroup, QueueSession, Status

from .models import File, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    files: int
    done: int
    """Completed, with a receipt and a result."""
    taken_over: int
    """Completed by another attempt than the first, which had not failed but ended with its lease."""
    failed: int
    """Given up after the last attempt."""
    twice: int
    """Receipts beyond a file's first."""
    errors: Sequence[ErrorGroup]

    @property
    def lost(self) -> int:
        return self.files - self.done - self.failed

    @property
    def is_clean(self) -> bool:
        return self.lost == 0 and self.twice == 0


def count(session: QueueSession, files: int) -> Tally:
    """``files`` is how many there were before the database came into it."""
    has_receipt = File.id.in_(select(Receipt.file_id))
    done = (File.status == Status.COMPLETED, File.sha256.is_not(None), has_receipt)
    receipts, receipted = session.execute(select(func.count(), func.count(Receipt.file_id.distinct()))).one()
    return Tally(
        files=files,
        done=_rows(session, *done),
        taken_over=_rows(session, *done, File.attempt > 1, File.error.is_(None)),
        failed=_rows(session, File.status == Status.DISCARDED, ~has_receipt),
        twice=receipts - receipted,
        errors=session.errors(File),
    )


def _rows(session: QueueSession, *where: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(File).where(*where)) or 0
