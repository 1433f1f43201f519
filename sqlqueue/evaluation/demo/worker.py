"""The demo's worker: reads a file, and commits the results together with the file's completion."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Retry, Worker, claim_of

from .folder import read
from .models import File, Receipt


def indexer(
    sessions: sessionmaker[QueueSession], folder: Path, name: str, begun: Callable[[], None] = lambda: None
) -> Worker:
    """Return a worker that indexes files; ``begun`` is called before each one, while the worker holds it."""
    worker = Worker(sessions, name=name, poll=timedelta(seconds=0.5))

    @worker.handler(File, concurrency=4)
    def index(session: QueueSession, file: File) -> None:
        begun()
        try:
            contents = read(folder / file.path)
        except OSError as error:
            raise Retry(reason=f"{type(error).__name__}: {error.strerror}") from error
        file.sha256, file.lines, file.words = contents.sha256, contents.lines, contents.words
        session.add(Receipt(file_id=file.id, attempt=claim_of(file).attempt, worker=name))

    return worker
