"""Count the words of the text files below a folder: ``python count_words.py FOLDER``."""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

from sqlalchemy import String, create_engine, event, func, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import ExponentialBackoff, QueueMixin, QueueOptions, QueueSession, RetryByError, Status, Worker


class Base(DeclarativeBase):
    pass


class Document(QueueMixin, Base):
    __tablename__ = "document"
    __queue__ = QueueOptions(
        lease=timedelta(seconds=10),  # when a crash ends the counting of a document, it is retried after this time
        max_attempts=3,
        retry=RetryByError({UnicodeDecodeError: None}, otherwise=ExponentialBackoff(timedelta(seconds=1))),
    )

    path: Mapped[str] = mapped_column(String(500), primary_key=True)
    words: Mapped[int | None]


engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///words.db"))
Session = sessionmaker(engine, class_=QueueSession)
worker = Worker(Session)


@event.listens_for(engine, "connect")
def use_wal(connection: DBAPIConnection, record: object) -> None:
    """Keep SQLite's readers and writer from blocking each other."""
    if engine.dialect.name == "sqlite":
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.close()


@worker.handler(Document, concurrency=4)
def count(session: QueueSession, document: Document) -> None:
    document.words = len(Path(document.path).read_text(encoding="utf-8").split())


def stop_when_done(ended: threading.Event) -> None:
    """Stop the worker when no work is left."""
    while not ended.wait(0.2):
        with Session() as session:
            if session.stats(Document).unfinished == 0:
                worker.stop()


def main(folder: Path) -> None:
    Base.metadata.create_all(engine)
    rows = [{"path": str(path.resolve())} for path in sorted(folder.rglob("*.txt"))]
    with Session.begin() as session:
        session.enqueue(Document, rows, on_conflict="ignore")  # keep documents from an earlier run as they are
    ended = threading.Event()
    watching = threading.Thread(target=stop_when_done, args=(ended,))
    watching.start()
    try:
        worker.run()  # in the main thread, so that it handles Ctrl-C and SIGTERM and lets running handlers finish
    finally:
        ended.set()
        watching.join()
    with Session() as session:
        stats = session.stats(Document)
        words = session.scalar(select(func.sum(Document.words)))
        print(f"{words or 0} words in {stats[Status.COMPLETED]} files, {stats.unfinished} files left")
        for error in session.errors(Document, Document.status == Status.DISCARDED):
            print(f"{error.tasks} files could not be read: {error.message}")
    engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # failures are listed at the end
    main(Path(sys.argv[1]))
