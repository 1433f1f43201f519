"""What the commands of this package and the bench share: arguments, output and errors, databases, processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy import URL, Engine, MetaData, create_engine, event, inspect, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import ArgumentError, QueueSession, SQLQueueError

from .._support.checks import database_url
from .._support.processes import CONTEXT, start
from .._support.texts import readable
from ..worker import UNREACHABLE, track

# -- the error that ends a command early ------------------------------------------------------------------------------


class EvaluationError(Exception):
    """An error that ends the command; its message is for the user."""


# -- the processes that a command starts ------------------------------------------------------------------------------

PATIENCE = 60
"""Seconds to wait for a message, and for the end of a process."""


class ChildProcess:
    """A process and the pipe to it.  It ignores Ctrl-C.  Leaving a ``with`` block kills it."""

    def __init__(self, name: str, target: Callable[..., object], *args: object) -> None:
        """Start ``target(channel, *args)``; ``channel`` is its end of the pipe."""
        self.name = name
        self.channel, far_end = CONTEXT.Pipe()
        self.process = start(target, far_end, *args, name=name, daemon=True)
        far_end.close()  # so that the pipe closes when the process ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def send(self, message: object) -> None:
        """Send ``message``, if the process has not ended."""
        with suppress(OSError):
            self.channel.send(message)

    def receive(self) -> Any:
        """Wait for a message, and return it.  Raises :class:`.EvaluationError` if the process exits or does not
        respond."""
        if not self.channel.poll(PATIENCE):
            raise EvaluationError(f"{self.name} does not respond")
        try:
            return self.channel.recv()
        except (EOFError, OSError) as error:
            raise EvaluationError(f"{self.name} exited with an error") from error

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, without any cleanup."""
        self.process.kill()
        self.process.join()

    def join(self) -> None:
        """Wait for it to end, for at most :data:`PATIENCE` seconds."""
        self.process.join(PATIENCE)


# -- connections to the database that the user gives ------------------------------------------------------------------


def connect(url: str | URL, **options: Any) -> Engine:
    """Return an engine with settings suited to a queue.

    SQLite gets a write-ahead log, unless the URL says otherwise: ``sqlite:///file:x.db?uri=true&journal_mode=delete``.
    With ``&synchronous=full``, each commit to the log waits for the disk.
    """
    url = make_url(url)
    if url.get_backend_name() == "sqlite":
        # how long a claim waits for another writer
        engine = create_engine(url, connect_args={"timeout": 30}, **options)
        event.listen(engine, "connect", lambda connection, _: prepare(url, connection))
        return engine
    # the level at which claims do not block each other; on MySQL and MariaDB it is not the default
    return create_engine(url, isolation_level="READ COMMITTED", **options)


def prepare(url: URL, connection: Any) -> None:
    """Give a driver's connection to SQLite the journal of :func:`connect`.  Others stay as they are."""
    if url.get_backend_name() == "sqlite" and url.query.get("journal_mode", "wal") == "wal":
        level = "FULL" if url.query.get("synchronous") == "full" else "NORMAL"
        connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
        connection.execute(f"PRAGMA synchronous = {level}")  # with NORMAL, a power failure can lose commits


def sessions(engine: Engine) -> sessionmaker[QueueSession]:
    """Return a maker of sessions for tasks that are read after the commit."""
    return sessionmaker(engine, class_=QueueSession, expire_on_commit=False)


def reached(url: str) -> Engine:
    """Connect to ``url`` and return its engine.

    Raises :class:`.EvaluationError` if it cannot be reached, or processes cannot share it.
    """
    try:
        engine = connect(database_url(url))
        if engine.dialect.is_async:
            raise EvaluationError(f"{engine.driver} is an asyncio driver: use a sync one")
        if engine.url.get_backend_name() == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise EvaluationError("processes cannot share an in-memory database: give a file, as in sqlite:///demo.db")
        track(engine, UNREACHABLE)
        engine.connect().close()
    except ArgumentError as error:
        raise EvaluationError(str(error)) from error
    except DBAPIError as error:
        raise EvaluationError(f"cannot connect: {error.orig}") from error
    return engine


@contextmanager
def created_tables(
    engine: Engine, metadata: MetaData, *, drop: bool, advice: str, keep: bool = False
) -> Iterator[None]:
    """Create all tables of ``metadata``, and drop them afterwards unless ``keep``.

    Raises :class:`.EvaluationError` with ``advice`` if some exist already; with ``drop`` they are replaced.
    """
    present = [name for name in metadata.tables if inspect(engine).has_table(name)]
    if present and not drop:
        exist = "exists" if len(present) == 1 else "exist"
        raise EvaluationError(f"{' and '.join(present)} already {exist}: {advice}")
    metadata.drop_all(engine)
    try:
        metadata.create_all(engine)
        yield
    finally:
        if not keep:
            metadata.drop_all(engine)


# -- arguments, output and errors of the command `sqlqueue prove`, and of the bench -----------------------------------


def url_option(text: str, variable: str = "SQLQUEUE_DATABASE_URL") -> Any:
    """Return the option ``--url``; ``text`` says which database it is."""
    prefer = "Prefer the environment variable if the URL contains a password: other users can see command lines."
    return typer.Option("--url", metavar="URL", envvar=variable, help=f"{text} {prefer}")


Url = Annotated[str, url_option("The database to use, with a sync driver: postgresql+psycopg://user@host/name.")]

SILENCE = 15.0
"""Seconds between two lines of progress if the output is not a terminal."""


@contextmanager
def exit_codes(console: Console, program: str, stopped: str = "The tables are dropped.") -> Iterator[None]:
    """End the command with a message and exit status 2 on errors, and 130 on Ctrl-C."""
    try:
        yield
    except (EvaluationError, SQLQueueError, DBAPIError, TimeoutError) as error:
        reason: Any = f"the database raised an error: {error.orig}" if isinstance(error, DBAPIError) else error
        console.print(Text(readable(f"{program}: {reason}", lines=True)), soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print(f"Stopped. {stopped}", soft_wrap=True)
        raise typer.Exit(130) from None


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that tells what is being done: in the last line of a terminal, or otherwise in a line of its own
    if there has been none for :data:`SILENCE`."""
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    printed = time.monotonic()

    def say(text: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= SILENCE:
            printed = time.monotonic()
            console.print(text, soft_wrap=True)

    yield say


def output(width: int) -> Console:
    """Return the console to print the results on, ``width`` characters wide unless it is a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)
