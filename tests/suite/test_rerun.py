"""A task that is enqueued while it runs is run once more; an older version changes nothing."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from sqlalchemy import RowMapping, select

from sqlqueue import ArgumentError, QueueSession, claim_of
from sqlqueue.transaction import channel_of, subscribe
from tests.suite.settlements import SETTLINGS
from tests.suite.simultaneous import Transaction, simultaneously
from tests.support.harness import Actor, Database
from tests.support.models import Film, Leaflet, Listing
from tests.support.rows import end_leases


def listing(db: Database) -> RowMapping:
    with db.engine.connect() as connection:
        return connection.execute(select(Listing.__table__)).mappings().one()


def rerun(db: Database, *, how: str = "rows", **row: Any) -> None:
    with db.begin() as actor:
        given = (Listing, [row]) if how == "rows" else (Listing(**row),)
        actor.enqueue(*given, on_conflict="rerun")


@pytest.mark.parametrize(("how", "key"), [("rows", {"id": 1}), ("instance", {"unique_key": "a"})])
def test_a_running_task_runs_once_more(db: Database, key: dict[str, Any], how: str) -> None:
    db.committed.add(Listing(id=1, unique_key="a", version=1))
    rerun(db, how=how, **key, version=2)  # it is waiting, so it is only changed
    runs = []
    while task := db.committed.claim(Listing):
        runs.append(task.version)
        if len(runs) == 1:
            for version in (3, 4, 5):
                rerun(db, how=how, **key, version=version)
            assert listing(db)["status"] == "running"
        db.committed.complete(task)
    assert runs == [2, 5]
    assert (listing(db)["status"], listing(db)["attempt"]) == ("completed", 2)


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("end", ["complete", "fail", "discard", "release", "crash"])
def test_every_end_of_a_run_is_followed_by_a_rerun(db: Database, end: str) -> None:
    """This holds even though it was the last attempt."""
    db.committed.add(Listing(id=1, version=1))
    task = db.committed.claim(Listing)
    rerun(db, id=1, version=2)
    assert (listing(db)["status"], db.committed.claim(Listing)) == ("running", None)
    if end in SETTLINGS:
        SETTLINGS[end](db.committed, task)
    else:
        end_leases(db, Listing)
        assert db.committed.claim(Listing) is None
        assert db.committed.rescue(Listing) == 1
    assert (listing(db)["status"], listing(db)["finished_at"]) == ("available", None)
    again = db.committed.claim(Listing)
    assert (again.version, again.attempt, again.max_attempts, again.finished_at) == (2, 2, 2, None)
    db.committed.complete(again)
    assert listing(db)["status"] == "completed"


def test_a_task_deleted_on_completion_stays_for_its_rerun(db: Database) -> None:
    db.committed.add(Leaflet(id=1, stage="post"))
    task = db.committed.claim(Leaflet)
    db.committed.enqueue(Leaflet(id=1), on_conflict="rerun")
    db.committed.complete(task)
    again = db.committed.claim(Leaflet)
    assert (again.stage, again.attempt) == ("fold", 2)


@pytest.mark.asyncio_everywhere
def test_a_cancelled_run_is_not_followed_by_another(db: Database) -> None:
    db.committed.add(Listing(id=1))
    task = db.committed.claim(Listing)
    rerun(db, id=1)
    db.committed.cancel(task)
    assert (listing(db)["status"], listing(db)["finished_at"] is None) == ("cancelled", False)


@pytest.mark.parametrize("key", [{"id": 1}, {"unique_key": "a"}], ids=["primary", "unique"])
def test_rerun_by_the_holder_of_a_lock_only_claim(db: Database, key: dict[str, Any]) -> None:
    """Such a claim leaves no mark in the row by which its completion could detect the request."""
    db.insert(Listing, [{"id": 1, "unique_key": "a"}, {"id": 2, "unique_key": "b"}])
    with db.begin() as actor:
        task = actor.claim(Listing, lease=None)
        with pytest.raises(ArgumentError, match="lease=None: complete it before enqueueing it again"):
            actor.enqueue(Listing, [{"id": 3}, {**key, "version": 1}], on_conflict="rerun")
        actor.enqueue(Listing, [{"id": 2}, {"id": 4, "unique_key": "c"}], on_conflict="rerun")
        actor.complete(task)
        actor.enqueue(Listing, [{"id": 1, "version": 2}], on_conflict="rerun")
    with db.begin() as actor:
        again = actor.claim(Listing, Listing.id == 1)
        assert (again.version, again.attempt) == (2, 2)


@pytest.mark.parametrize("end", ["complete", "discard"])
def test_workers_are_notified_of_a_rerun(db: Database, end: str) -> None:
    db.insert(Listing, [{"id": 1}])
    task = db.committed.claim(Listing)
    rerun(db, id=1, version=1)
    heard: list[int] = []
    unsubscribe = subscribe([channel_of(Listing.__queue_spec__)], lambda: heard.append(1))
    SETTLINGS[end](db.committed, task)
    unsubscribe()
    assert heard == [1]


@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize(
    ("kind", "key"),
    [("version", {"id": 1}), ("changed_at", {"unique_key": "a"}), ("version", {"id": 1, "unique_key": "a"})],
    ids=["primary", "unique", "both"],
)
def test_older_versions_change_nothing(db: Database, key: dict[str, Any], running: bool, kind: str) -> None:
    first = datetime(2026, 1, 1)
    values = [first + timedelta(days=n) if kind == "changed_at" else n for n in range(4)]
    version = getattr(Listing, kind)
    db.committed.add(Listing(id=1, unique_key="a"))  # with no version, everything is newer
    task = db.committed.claim(Listing) if running else None

    def enqueue(number: int, priority: int) -> RowMapping:
        row = {**key, kind: values[number], "priority": priority, "description": str(priority) * 5_000}
        db.committed.enqueue(Listing, [row], on_conflict="rerun", version=version)
        return listing(db)

    assert (enqueue(1, 1)[kind], listing(db)["priority"]) == (values[1], 1)
    before = enqueue(2, 2)
    assert (before[kind], before["priority"], before["description"]) == (values[2], 2, "2" * 5_000)
    assert enqueue(2, 3) == before
    assert enqueue(1, 4) == before
    if not running:
        return
    db.committed.complete(task)
    task = db.committed.claim(Listing)
    assert enqueue(2, 5)["claimed_at"] is not None, "what is not newer causes a run"
    db.committed.complete(task)
    assert listing(db)["status"] == "completed"


def test_a_completed_task_remembers_its_version(db: Database) -> None:
    def enqueue(version: int) -> RowMapping:
        db.committed.enqueue(Listing(id=1, version=version), on_conflict="rerun", version=Listing.version)
        return listing(db)

    enqueue(2)
    db.committed.consume(Listing)
    done = listing(db)
    assert enqueue(1) == enqueue(2) == done
    assert (enqueue(3)["status"], listing(db)["version"]) == ("available", 3)


def test_an_invalid_version_is_rejected() -> None:
    for arguments, words in (
        ({"version": Listing.version}, "on_conflict"),
        ({"version": Film.id, "on_conflict": "rerun"}, "version=Film.id"),
        ({"version": Listing.changed_at, "on_conflict": "rerun"}, "row 0: changed_at is missing"),
    ):
        with QueueSession() as session, pytest.raises(ArgumentError, match=words):
            session.enqueue(Listing, [{"id": 1, "version": 1}], **arguments)  # type: ignore[call-overload]


UPDATES = 25
WRITERS = WORKERS = 3


class Storm:
    """Writers that keep changing listings, and workers that run them."""

    def __init__(self, db: Database, keys: list[dict[str, Any]], *, early: bool, version: Any = None) -> None:
        self.written: defaultdict[Any, list[int]] = defaultdict(list)
        self.runs: defaultdict[Any, list[tuple[int, int, int]]] = defaultdict(list)
        self._early, self._version = early, version
        self._versions, self._writing = count(1), len(keys)
        simultaneously(db, *(partial(self._write, key) for key in keys), *[self._work] * WORKERS)

    def _write(self, key: dict[str, Any], transaction: Transaction[None]) -> None:
        for _ in range(UPDATES):
            row = {**key, "version": next(self._versions)}
            transaction(lambda a, r=row: a.enqueue(Listing, [r], on_conflict="rerun", version=self._version))
            self.written[key.get("unique_key")].append(row["version"])
        self._writing -= 1

    def _work(self, transaction: Transaction[Any]) -> None:
        """Run listings until the writers have ended and nothing is left."""
        while True:
            last_look = not self._writing
            run = transaction(self._run)
            if run is None and last_look:
                return
            if run is not None:
                claim, key, version = run
                if self._early:
                    transaction(lambda actor, claim=claim: actor.complete(claim))
                self.runs[key].append((*claim.identity, claim.attempt, version))

    def _run(self, actor: Actor) -> Any:
        task = actor.claim(Listing)
        if task is None:
            return None
        run = claim_of(task), task.unique_key, task.version
        if not self._early:
            actor.complete(task)
        return run


early_or_not = pytest.mark.parametrize("early", [False, True], ids=["one transaction", "claim committed"])


@pytest.mark.requires("obeys_hints")
@early_or_not
def test_many_writers_of_one_key(sync_db: Database, early: bool) -> None:
    """Many writers: no version is overwritten by an older one, and the newest one gets a run."""
    seen = Storm(sync_db, [{"id": 1}] * WRITERS, early=early, version=Listing.version)
    versions = [version for *_, version in sorted(seen.runs[None])]
    assert versions[-1] == max(seen.written[None])
    assert versions == sorted(set(versions)), "an older version came back, or one was run twice"


@pytest.mark.requires("obeys_hints")
@early_or_not
def test_many_writers_of_many_keys(sync_db: Database, early: bool) -> None:
    """Each key has a writer, and gets a new row when the previous one is final: the last change gets a run."""
    keys = [str(number) for number in range(WRITERS)]
    seen = Storm(sync_db, [{"unique_key": key} for key in keys], early=early)
    for key in keys:
        versions = [version for *_, version in sorted(seen.runs[key])]
        assert versions[-1] == seen.written[key][-1]
        assert versions == sorted(set(versions))
        assert len(versions) <= UPDATES
