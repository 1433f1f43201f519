"""What a worker does: claim files, read them, and commit what it found together with their completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlqueue import ClaimLostError, QueueSession, claim_of

from .folder import Contents, read
from .models import File, Receipt

_BATCH = 10
_PAUSE = 0.05

Outcome = tuple[File, Contents | OSError]


class Worker:
    """Works until every file is done or given up; ``claimed`` is told of each batch that it has claimed."""

    def __init__(
        self,
        session: QueueSession,
        folder: Path,
        name: str,
        claimed: Callable[[Sequence[File]], None] = lambda files: None,
    ) -> None:
        self.session = session
        self.folder = folder
        self.name = name
        self.claimed = claimed

    def run(self) -> None:
        while True:
            files = self.session.claim_many(File, limit=_BATCH, claimed_by=self.name)
            self.session.commit()  # from here on the leases hold the files: should this process die, they end
            if files:
                self.claimed(files)
                self.work_off(files)
            elif self.is_over():
                return
            else:
                time.sleep(_PAUSE)

    def work_off(self, files: Sequence[File]) -> None:
        lease = Lease(self.session, files)
        try:
            self.settle([(file, self.outcome(file, lease)) for file in files])
        except ClaimLostError:
            # too slow: somebody else has one of them, and nothing of what was done for it may stay
            self.session.rollback()

    def outcome(self, file: File, lease: Lease) -> Contents | OSError:
        try:
            return read(self.folder / file.path, lease.keep)
        except OSError as error:
            return error

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """The results, the receipts and the state of the queue, in one commit."""
        done: list[File] = []
        for file, outcome in outcomes:
            if isinstance(outcome, OSError):
                self.session.fail(file, f"{type(outcome).__name__}: {outcome.strerror}")
            else:
                file.sha256, file.lines, file.words = outcome.sha256, outcome.lines, outcome.words
                self.session.add(Receipt(file_id=file.id, attempt=claim_of(file).attempt, worker=self.name))
                done.append(file)
        self.session.complete(done)
        self.session.commit()

    def is_over(self) -> bool:
        """Nothing can be claimed now; is there anything that may be claimed later?"""
        unfinished = self.session.stats(File).unfinished
        self.session.commit()
        return unfinished == 0


class Lease:
    """Keeps claims alive while their files are read, however large these are."""

    def __init__(self, session: QueueSession, files: Sequence[File]) -> None:
        self.session = session
        self.files = files
        self.interval = File.__queue__.lease.total_seconds() / 3
        self.due = time.monotonic() + self.interval

    def keep(self) -> None:
        if time.monotonic() >= self.due:
            self.session.heartbeat(self.files)
            self.session.commit()
            self.due = time.monotonic() + self.interval
