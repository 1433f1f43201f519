"""The results of a run, counted in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from sqlqueue import ErrorGroup, QueueSession, Status

from .models import File, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers of files by outcome."""

    files: int
    done: int
    """Files completed, with a receipt and a result."""
    taken_over: int
    """Files completed by a later attempt, after the lease of the first had expired without a failure."""
    failed: int
    """Files given up after the last attempt."""
    twice: int
    """The number of additional receipts for the same file."""
    errors: Sequence[ErrorGroup]

    @property
    def lost(self) -> int:
        """The number of files that are neither done nor failed."""
        return self.files - self.done - self.failed

    @property
    def is_clean(self) -> bool:
        """Whether no file was lost or done twice."""
        return self.lost == 0 and self.twice == 0


def count(session: QueueSession, files: int) -> Tally:
    """Return the results of a run; ``files`` is the number of files found in the folder."""
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
