"""An application of the library: the models of the demo, and its worker, which indexes files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from stat import S_ISREG

from sqlalchemy import BigInteger, ForeignKey, Identity, Integer, String, UnicodeText
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import ExponentialBackoff, QueueMixin, QueueOptions, QueueSession, Retry, Worker, claim_of

# -- finding and reading the files of a folder ------------------------------------------------------------------------

_SKIPPED = frozenset({".git", ".hg", ".svn"})
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file: its path below the folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The results of reading a file."""

    sha256: str
    lines: int
    words: int


def scan(folder: Path) -> Iterator[Found]:
    """Yield the regular files below ``folder``.  Links are not followed, to avoid loops."""
    for directory, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted(files):
            path = os.path.join(directory, name)
            size = _size(path)
            if size is not None:
                yield Found(os.path.relpath(path, folder), size)


def _size(path: str) -> int | None:
    """Return the size of a regular file; ``None`` for anything else, a file that was deleted, or a name that is not
    valid text."""
    try:
        path.encode()
        status = os.lstat(path)
    except (OSError, UnicodeEncodeError):
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def read(path: Path) -> Contents:
    """Read a file of any size, in chunks, and return its hash and counts; raises ``OSError``."""
    digest, lines, words, within_word = hashlib.sha256(), 0, 0, False
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            words += len(chunk.split()) - (within_word and not chunk[:1].isspace())
            within_word = not chunk[-1:].isspace()
    return Contents(digest.hexdigest(), lines, words)


# -- the demo's tables: the files, which are the queue, and a receipt for each completed attempt ----------------------


class Base(DeclarativeBase):
    """The declarative base of the demo's models."""


class File(QueueMixin, Base):
    """A file below the folder: an ordinary model whose rows are the tasks."""

    __tablename__ = "sqlqueue_demo_file"
    __queue__ = QueueOptions(
        lease=timedelta(seconds=2),
        max_attempts=4,
        retry=ExponentialBackoff(timedelta(milliseconds=100), factor=2),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    path: Mapped[str] = mapped_column(UnicodeText)
    """The path relative to the folder."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(String(64))
    lines: Mapped[int | None] = mapped_column(BigInteger)
    words: Mapped[int | None] = mapped_column(BigInteger)


class Receipt(Base):
    """A receipt of a file, written only in the transaction that completes it.

    The key allows several receipts for a file: they reveal that a file was done twice, instead of preventing it.
    """

    __tablename__ = "sqlqueue_demo_receipt"

    file_id: Mapped[int] = mapped_column(ForeignKey(File.id), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    worker: Mapped[str] = mapped_column(String(40))


# -- the demo's worker: reads a file, and commits the results together with the file's completion ---------------------


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
