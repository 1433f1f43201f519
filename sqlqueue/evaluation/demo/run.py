"""The command ``sqlqueue demo``: starts workers, kills one, and counts the results in the database."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from sqlalchemy import URL, ColumnElement, Engine, func, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import ErrorGroup, QueueSession, QueueStats, Status, Worker

from ..._support.processes import CONTEXT
from ..._support.texts import readable
from ..support import ChildProcess, EvaluationError, connect, created_tables, exit_codes, reached, sessions, url_option
from .application import Base, File, Found, Receipt, indexer, scan

# -- the command `sqlqueue demo` --------------------------------------------------------------------------------------

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="Index the files below this folder.")
]
Workers = Annotated[
    int, typer.Option("--workers", "-w", metavar="N", min=1, max=64, help="Number of worker processes.")
]
_INSTEAD = "Use this database instead of a SQLite file: postgresql+psycopg://user@host/name."
DatabaseURL = Annotated[str | None, url_option(_INSTEAD, "SQLQUEUE_DEMO_URL")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the tables for inspection.")]
Drop = Annotated[bool, typer.Option("--drop", help="Replace the tables that an earlier demo left behind.")]


def demo(
    folder: Folder = Path(), workers: Workers = 4, url: DatabaseURL = None, keep: Keep = False, drop: Drop = False
) -> None:
    """Index a folder's files with several processes, kill one of them, and count the results.

    Every file below FOLDER becomes a row of an ordinary model, which is also the queue. Worker processes claim rows,
    read the files, and commit the results together with the completion. One worker is killed (SIGKILL) while it holds
    files: their leases expire after two seconds, and the other workers take over.

    At the end the rows are counted: none may be lost, and none done twice. The exit status is 1 if any was.

    The tables, sqlqueue_demo_file and sqlqueue_demo_receipt, are created in a temporary SQLite file or in the database
    of --url, and are dropped afterwards.
    """
    display = Display(Console(highlight=False), Console(stderr=True, highlight=False))
    stopped = "The workers have ended." if keep else "The workers have ended, and the tables were dropped."
    with exit_codes(display.complaints, "sqlqueue demo", stopped):
        found = list(scan(folder))
        if not found:
            raise EvaluationError(f"there are no files below {folder}")
        with tables(url, keep=keep, drop=drop) as engine:
            tally = run(engine, folder.resolve(), found, workers, display)
            if keep:
                display.say(f"Kept: {engine.url}")
    raise typer.Exit(0 if tally.is_clean else 1)


# -- a run of the demo: enqueue the files, start the workers, kill one, count the results -----------------------------

_TICK = 0.1
_LEASE = File.__queue__.lease.total_seconds()


def run(engine: Engine, folder: Path, found: Sequence[Found], workers: int, display: Display) -> Tally:
    """Index the files ``found`` with several worker processes, print the results, and return them."""
    Session = sessions(engine)
    with Session.begin() as session:
        session.enqueue(File, [{"path": file.path, "size": file.size} for file in found])
    with _processes(workers, engine.url, folder) as processes, display.progress(len(found)) as show:
        victim = _begin(processes)
        started = time.monotonic()
        for stats in _watched(processes, Session):
            show(stats)
            if victim and not victim.is_killed and _is_time(stats, time.monotonic() - started):
                victim.kill()
                display.say(_killed(victim, Session))
        seconds = time.monotonic() - started
        for process in processes:
            process.stop()
            if process.has_crashed:
                display.complain(f"{process.name} exited with an error")
    with Session() as session:
        tally = count(session, len(found))
    display.report(tally, seconds)
    return tally


def _watched(processes: Sequence[DemoWorker], Session: sessionmaker[QueueSession]) -> Iterator[QueueStats]:
    """Yield the statistics repeatedly, until all files are finished or all workers have ended."""
    last, moved = None, time.monotonic()
    while any(each.process.is_alive() for each in processes):
        time.sleep(_TICK)
        with Session.begin() as session:
            stats = session.stats(File)
            if stats != last:
                last, moved = stats, time.monotonic()
            elif time.monotonic() > moved + _LEASE:
                session.rescue(File)  # discards abandoned files that have used up their attempts
        yield stats
        if not stats.unfinished:
            return


def _is_time(stats: QueueStats, seconds: float) -> bool:
    """Return whether to kill the victim: other workers have progressed, but its lease has not expired."""
    return stats[Status.COMPLETED] > 0 or stats[Status.AVAILABLE] == 0 or seconds > _LEASE / 2


def _killed(victim: DemoWorker, Session: sessionmaker[QueueSession]) -> str:
    with Session() as session:
        held = session.stats(File, File.claimed_by == victim.name)[Status.RUNNING]
    return f"Killed {victim.name} (process {victim.process.pid}) while it held {held} files."


# -- the worker processes, one of which is killed ---------------------------------------------------------------------


class DemoWorker(ChildProcess):
    """A worker process."""

    def __init__(self, name: str, url: URL, folder: Path) -> None:
        super().__init__(name, _main, name, url, folder)
        self.is_killed = False

    @property
    def has_crashed(self) -> bool:
        """Whether it ended with an error, which it has printed."""
        return not self.is_killed and self.process.exitcode not in (None, 0)

    def stop(self) -> None:
        """Stop it, and wait for it."""
        self.send("stop")
        self.join()

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, without any cleanup."""
        self.is_killed = True
        super().kill()


@contextmanager
def _processes(number: int, url: URL, folder: Path) -> Iterator[list[DemoWorker]]:
    CONTEXT.set_forkserver_preload([__name__])
    with ExitStack() as stack:
        yield [stack.enter_context(DemoWorker(f"worker {n}", url, folder)) for n in range(1, number + 1)]


def _begin(processes: Sequence[DemoWorker]) -> DemoWorker | None:
    """Let the processes work.  If there are several, the first one pauses when it holds files, and is returned.

    Raises :class:`.EvaluationError` if a process exits or does not respond.
    """
    for process in processes:
        process.receive()
    victim = processes[0] if len(processes) > 1 else None
    if victim is not None:
        victim.send("claim and wait")
        victim.receive()
    for process in processes:
        if process is not victim:
            process.send("work")
    return victim


def _main(channel: Connection, name: str, url: URL, folder: Path) -> None:
    """Run a worker process."""

    first = threading.Lock()

    def claimed() -> None:
        first.acquire()  # only one thread may use the pipe
        channel.send("claimed")
        threading.Event().wait()  # until it is killed

    engine = connect(url)
    engine.connect().close()
    channel.send("ready")
    is_victim = channel.recv() == "claim and wait"
    worker = indexer(sessions(engine), folder, name, *([claimed] if is_victim else []))
    threading.Thread(target=_obey, args=(channel, worker), daemon=True).start()
    worker.run()


def _obey(channel: Connection, worker: Worker) -> None:
    """Stop the worker on a message, or when the parent process ends."""
    with suppress(EOFError):
        channel.recv()
    worker.stop(at_once=True)


# -- the demo's database: a temporary SQLite file, or the database of a URL -------------------------------------------


@contextmanager
def tables(url: str | None, *, keep: bool, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the demo's tables, and drop them afterwards unless ``keep``.

    Raises :class:`.EvaluationError` if the database cannot be used, or the tables exist and ``drop`` is not given.
    """
    with ExitStack() as stack:
        engine = reached(url or _temporary(stack, keep=keep))
        stack.callback(engine.dispose)
        advice = "another demo is running, or its tables were kept. --drop replaces them."
        stack.enter_context(created_tables(engine, Base.metadata, drop=drop, advice=advice, keep=keep or not url))
        yield engine


def _temporary(stack: ExitStack, *, keep: bool) -> str:
    directory = tempfile.mkdtemp(prefix="sqlqueue-demo-")
    if not keep:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return f"sqlite:///{directory}/demo.db"


# -- the output of the demo -------------------------------------------------------------------------------------------

_WAITING = (Status.RUNNING, Status.RETRYABLE)
_SHOWN_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Display:
    """The consoles of the demo: ``output`` for results, ``complaints`` for errors."""

    output: Console
    complaints: Console

    def say(self, text: str) -> None:
        """Print ``text`` as a result."""
        self.output.print(_plain(text), soft_wrap=True)

    def complain(self, text: str) -> None:
        """Print ``text`` as an error."""
        self.complaints.print(_plain(text), soft_wrap=True)

    @contextmanager
    def progress(self, files: int) -> Iterator[Callable[[QueueStats], None]]:
        """Yield a function that updates a progress bar, which is shown only on a terminal."""
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("files {task.fields[waiting]}"))
        hidden = not self.output.is_terminal
        with Progress(*columns, console=self.output, transient=True, disable=hidden) as progress:
            bar = progress.add_task("", total=files, waiting="")

            def show(stats: QueueStats) -> None:
                waiting = ", ".join(f"{stats[status]} {status}" for status in _WAITING if stats[status])
                progress.update(bar, completed=stats.total - stats.unfinished, waiting=waiting)

            yield show

    def report(self, tally: Tally, seconds: float) -> None:
        """Print the results of a run that took ``seconds``."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        for name, number, remark in _lines(tally, seconds):
            table.add_row(name, number, remark)
        self.output.print(table)
        for group in tally.errors[:_SHOWN_ERRORS]:
            self.say(f"{group.tasks} failed: {group.message}")


def _plain(text: str) -> Text:
    """Return ``text`` made safe for a terminal, since file names and database errors can contain anything."""
    return Text(readable(text, lines=True))


def _lines(tally: Tally, seconds: float) -> Iterator[tuple[str, str, str]]:
    yield "files", f"{tally.files:,}", "enqueued in one transaction"
    yield "done", f"{tally.done:,}", "completed, with result and receipt"
    yield "taken over", f"{tally.taken_over:,}", "of these, after another worker's lease expired"
    yield "failed", f"{tally.failed:,}", "retried, then given up"
    yield "lost", _alarm(tally.lost), "files that are neither done nor failed"
    yield "done twice", _alarm(tally.twice), "additional receipts for the same file"
    yield "rate", f"{tally.done / seconds:,.0f}/s", f"{seconds:.1f} s, including the wait for the lease"


def _alarm(number: int) -> str:
    return f"[{'bold red' if number else 'green'}]{number:,}[/]"


# -- the results of a run, counted in the database --------------------------------------------------------------------


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
        done=_number(session, *done),
        taken_over=_number(session, *done, File.attempt > 1, File.error.is_(None)),
        failed=_number(session, File.status == Status.DISCARDED, ~has_receipt),
        twice=receipts - receipted,
        errors=session.errors(File),
    )


def _number(session: QueueSession, *where: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(File).where(*where)) or 0
