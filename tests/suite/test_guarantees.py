"""The table of guarantees in docs/explanation/semantics.md, row by row and column by column, on every engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from sqlqueue import ClaimLostError, UnsettledClaimError
from tests.support.harness import Actor, Database
from tests.support.models import Ledger, Task
from tests.support.rows import count, end_leases
from tests.support.workers import eventually, seen

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "semantics.md"


@dataclass(frozen=True)
class Way:
    """A column of the table: how a task is claimed, processed and settled."""

    heading: str
    claim: Callable[[Actor], Any]
    commits_claim: bool = False
    settles: bool = True

    def begin(self, session: Actor) -> Any:
        """Run everything up to the start of the work."""
        task = self.claim(session)
        if self.commits_claim:
            session.commit()
        return task

    def work(self, session: Actor, task: Any) -> None:
        session.add(Ledger(task_id=task.id, worker="me"))
        session.flush()

    def end(self, session: Actor, task: Any) -> None:
        if self.settles:
            session.complete(task)
        session.commit()


LOCK = Way("`lease=None`", lambda session: session.claim(Task, lease=None))
WAYS = [
    Way("one open transaction", lambda session: session.claim(Task)),
    Way("a lease", lambda session: session.claim(Task), commits_claim=True),
    LOCK,
    Way("`consume`", lambda session: session.consume(Task), commits_claim=True, settles=False),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=[way.heading.strip("`") for way in WAYS])


def cell(row: str, way: Way) -> str:
    """Return a cell of the documented table."""
    table = re.search(r"^\| \| one open transaction .*?\n\n", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert table is not None
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in table[0].strip().splitlines()]
    (found,) = (line for line in lines if line[0] == row)
    return found[lines[0].index(way.heading)]


def crash(session: Actor) -> None:
    """Close the socket, as when the process dies."""
    session.run(lambda inner: inner.invalidate())


def lose_connection(session: Actor) -> None:
    """Close the connection without the session noticing."""
    session.run(lambda inner: inner.connection().connection.driver_connection.close())


@pytest.fixture
def one_task(sync_db: Database) -> Database:
    sync_db.insert(Task, [{"id": 1}])
    return sync_db


@every_way
@pytest.mark.requires("locks_rows")
def test_a_claimed_task_is_not_claimed_again(one_task: Database, way: Way) -> None:
    with one_task.session() as session, one_task.session() as other:
        assert way.begin(session) is not None
        assert other.claim(Task) is None
        assert other.claim(Task, lease=None) is None


@every_way
def test_a_crash_before_the_first_commit_is_undone(one_task: Database, way: Way) -> None:
    crashing = one_task.variant().session()
    way.claim(crashing)
    crash(crashing)
    # the server may take a moment to notice that a connection is gone
    assert eventually(lambda: one_task.session().claim(Task)).attempt == 1


@every_way
def test_a_crash_after_the_commit_of_the_claim(one_task: Database, way: Way) -> None:
    crashing = one_task.variant().session()
    way.begin(crashing)
    crash(crashing)
    end_leases(one_task)
    if way.settles:
        attempt = 2 if way.commits_claim else 1
        assert eventually(lambda: one_task.session().claim(Task)).attempt == attempt
    else:
        assert one_task.session().claim(Task) is None
        assert count(one_task, Ledger) == 0


@every_way
def test_a_late_claimer_writes_nothing(one_task: Database, way: Way) -> None:
    if not way.settles:
        return  # "nothing to lose": no other claimer does the same work
    late, other = one_task.variant().session(), one_task.session()
    task = way.begin(late)
    if not way.commits_claim:
        lose_connection(late)
    end_leases(one_task)
    successor = eventually(lambda: other.claim(Task))
    other.commit()
    with pytest.raises(ClaimLostError if way.commits_claim else DBAPIError):
        late_work(way, late, task)
    crash(late)
    other.complete(successor)
    other.commit()
    assert count(one_task, Ledger) == 0


def late_work(way: Way, session: Actor, task: Any) -> None:
    way.work(session, task)
    way.end(session, task)


@every_way
def test_a_commit_with_nothing_settled(one_task: Database, way: Way) -> None:
    with one_task.session() as session:
        way.claim(session)
        if way is LOCK:
            with pytest.raises(UnsettledClaimError):
                session.commit()
            session.rollback()
        else:
            session.commit()
    with one_task.engine.connect() as connection:
        status = connection.scalar(select(Task.status))
    assert status == {"`lease=None`": "available", "`consume`": "completed"}.get(way.heading, "running")


@every_way
def test_effects_are_exactly_once(one_task: Database, way: Way) -> None:
    """The first try writes and fails before its commit; the others continue until nothing is claimable."""
    tries = 0
    while True:
        with one_task.session() as session:
            task = way.begin(session)
            if task is None:
                break
            tries += 1
            way.work(session, task)
            if tries > 1:
                way.end(session, task)
        end_leases(one_task)
    assert (tries, count(one_task, Ledger)) == {"exactly once": (2, 1), "at most once": (1, 0)}[
        cell("effects here", way)
    ]


def told(statements: list[Any]) -> int:
    """Return how many of them the table counts: all but those by which SQLite becomes the writer."""
    return sum(not each[2].startswith(("BEGIN", "UPDATE task SET status=task")) for each in statements)


@every_way
@pytest.mark.requires("statements_row")
def test_statements_and_commits_match_the_documented_table(one_task: Database, way: Way) -> None:
    database = one_task.read_committed
    one_task.insert(Task, [{"id": 2}, {"id": 3}])
    with database.session() as session:  # a connection and a dialect that are already initialized
        way.end(session, way.begin(session))
        with seen(database, "before_cursor_execute") as statements, seen(database, "commit") as commits:
            task = way.begin(session)
            claiming = len(statements)
            way.end(session, task)
    said = [int(number) for number in cell(one_task.case.statements_row, way).partition(",")[0].split(" + ")]
    used = [told(statements[:claiming]), told(statements[claiming:])]
    assert used[: len(said)] == said
    assert len(commits) == int(cell("commits", way).partition(",")[0])
