"""The sessions of an experiment, the rows of its queues, and what the server tells about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Engine, Table, delete, func, insert, select, text
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession
from tests.first_run.views import Views
from tests.support.models import Base, Mail, Seat, Slot, Task, Visit

MODELS = (Task, Mail, Seat, Slot, Visit)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
FIRST = 1_000
"""The number of rows that are inserted, rather than copied."""
ROWS = ("KEY", "RID")
_STEP = re.compile(r'PhysicalOp="([^"]+)"|<Object [^>]*?Index="\[([^"]+)\]"')
"""The steps of a plan in XML, and the indexes that they use."""


class Lock(NamedTuple):
    """Locks of a session: where, of which kind and in which mode, and how many."""

    place: str
    kind: str
    mode: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A server with empty tables, and the extent of the experiments."""

    engine: Engine
    views: Views
    ready: Sequence[int]
    """The numbers of ready tasks to try, in ascending order."""
    sessions: int
    """The number of sessions that claim at once."""
    say: Callable[[str], None] = print
    learned: list[str] = field(default_factory=list)
    """The answers so far."""

    def prepare(self) -> None:
        tables: list[Any] = [Base.metadata.tables[name] for name in _needed()]
        Base.metadata.create_all(self.engine, tables)

    @contextmanager
    def session(self) -> Iterator[QueueSession]:
        """Open a session on a connection of its own, whose transaction is rolled back."""
        with sessionmaker(self.engine, class_=QueueSession)() as session:
            yield session
            session.rollback()

    def answer(self, verdict: str) -> None:
        self.learned.append(verdict)
        self.say(f"  => {verdict}")

    def locks(self, session: QueueSession) -> list[Lock]:
        """Return and print the locks that a session holds."""
        found = [Lock(*map(_plain, row)) for row in session.execute(text(self.views.locks))]
        for lock in found:
            self.say(f"    {lock.number:>6} {lock.mode:<4} {lock.kind:<7} {lock.place}")
        return found

    def waits(self) -> list[Sequence[Any]]:
        """Return and print which sessions wait, and for what."""
        with self.engine.connect() as connection:
            found: list[Sequence[Any]] = [*connection.execute(text(self.views.waits))]
        for row in found:
            self.say(f"    waits: {', '.join(map(str, row))}")
        return found

    def plan(self, pattern: str) -> list[str]:
        """Return and print the steps of the plan of the last statement like that."""
        with self.engine.connect() as connection:
            rows = connection.execute(text(self.views.plan), {"pattern": pattern}).all()
        steps = [step for line, _ in rows for step in plan_steps(str(line))]
        for step in steps or [f"no plan of a statement like {pattern} was found"]:
            self.say(f"    {step}")
        return steps

    # -- rows ----------------------------------------------------------------------------------------------------------

    def empty(self, *models: type[Any]) -> None:
        with self.engine.begin() as connection:
            for model in models:
                connection.execute(delete(model))

    def fill(self, model: type[Any], rows: int, **values: Any) -> list[Any]:
        """Insert that many ready tasks, copying most of them; return the first keys."""
        table: Table = model.__table__
        copied = [column for column in table.columns if column is not table.autoincrement_column]
        with self.engine.begin() as connection:
            connection.execute(delete(table))
            if first := min(rows, FIRST):
                connection.execute(insert(model), [{"available_at": PAST, **values} for _ in range(first)])
            present = first
            while present < rows:
                more = select(*copied).limit(min(present, rows - present))
                connection.execute(insert(table).from_select(copied, more))
                present = connection.scalar(select(func.count()).select_from(table)) or 0
            (key,) = table.primary_key
            return [*connection.scalars(select(key).order_by(key).limit(FIRST))]

    def alone(self, statements: Iterable[str]) -> None:
        """Execute statements outside of transactions."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                self.say(f"  {statement}")
                connection.exec_driver_sql(statement)


def plan_steps(line: str) -> Sequence[str]:
    """Return a plan in XML as its steps and indexes, and a line of another plan as it is."""
    if not line.lstrip().startswith("<"):
        return [line]
    return [f"index {index}" if index else step for step, index in _STEP.findall(line)]


def of_rows(locks: Iterable[Lock]) -> dict[str, int]:
    """Return the number of locked rows or entries by index."""
    found: dict[str, int] = {}
    for lock in locks:
        if lock.kind in ROWS:
            found[lock.place] = found.get(lock.place, 0) + lock.number
    return found


def _plain(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value if isinstance(value, int) else str(value)


def _needed() -> Iterator[str]:
    """Yield the names of the models' tables, and of those that they refer to."""
    for model in MODELS:
        yield model.__tablename__
        for key in Base.metadata.tables[model.__tablename__].foreign_keys:
            yield key.target_fullname.partition(".")[0]
