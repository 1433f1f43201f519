"""Queues that claim by keys, after random operations, compared with a model in Python of what may start."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Identity, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import Claim, ClaimLostError, ConstantBackoff, LimitMixin, QueueOptions, Rate, claim_of
from sqlqueue.kinds.limits import PLACE, holder
from sqlqueue.operations import turns
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Actor, Database
from tests.support.models import Base, Crawl, Slot, Transfer
from tests.support.rows import PAST, TOMORROW

FINAL = ("completed", "cancelled", "discarded")
KEYS = ("a", "b", "gold", "d", None)
STEPS = 60
SEEDS = (1, 5)
HOUR = timedelta(hours=1)
FAR = 1_000
"""More tasks than a walk has."""


class Delivery(LimitMixin, Base):
    """A fair queue with limits."""

    __tablename__ = "delivery"
    __queue__ = QueueOptions(fair="limit_key", slots=Slot, limit=2, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Consignment(LimitMixin, Base):
    """A queue with rates."""

    __tablename__ = "consignment"
    __queue__ = QueueOptions(slots=Slot, rate=Rate(4, per=HOUR), retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Walk:
    """A queue, and what is known of it."""

    def __init__(self, db: Database, model: Any, seed: int) -> None:
        self.db, self.model, self.spec = db, model, spec_of(model)
        self.column: Any = self.spec.keyed_by
        self.chance = random.Random(seed)
        self.claims: dict[int, Claim] = {}
        """The claims that hold their tasks."""
        self.lost: list[Claim] = []
        options = self.spec.options
        first = FAR if options.first_limit is None else options.first_limit
        self.limits: defaultdict[str | None, int] = defaultdict(lambda: first)
        self.rates: defaultdict[str | None, int | None] = defaultdict(lambda: options.rate and options.rate.starts)
        self.started: defaultdict[str | None, list[Claim]] = defaultdict(list)
        """The claims that count for the rate of each key, in order."""
        self.gives_back = True
        """Whether a release gives back a start."""
        self.paused: set[str] = set()
        self.ends: Counter[int] = Counter()
        """How many tasks were inserted."""

    # -- the model ----------------------------------------------------------------------------------------------------

    def rows(self) -> dict[int, Any]:
        with self.db.engine.connect() as connection:
            found = connection.execute(select(self.model.__table__)).mappings().all()
        rows = {row["id"]: row for row in found}
        held = {id for id, row in rows.items() if row["status"] == "running"}
        assert held == self.claims.keys()
        return rows

    def startable(self, rows: dict[int, Any], locked: Sequence[int] = ()) -> dict[str | None, list[int]]:
        """Return the tasks that may start now, by key, in order."""
        now = datetime.now(UTC)
        runs = {id for id in rows if rows[id]["status"] == "running" and rows[id]["available_at"] > now}
        found: dict[str | None, list[int]] = {}
        for key in KEYS:
            mine = {id: row for id, row in rows.items() if row[self.column.name] == key and key not in self.paused}
            open_ = [id for id, row in mine.items() if row["status"] not in FINAL]
            crashed = [id for id in open_ if rows[id]["status"] == "running" and not self.has_attempts(rows[id])]
            free = [id for id in open_ if rows[id]["available_at"] <= now and not {id} & {*locked, *runs, *crashed}]
            if self.spec.sequence is None:
                free.sort(key=lambda id: self.place(rows[id]))
                room = self.limits[key] - sum(id in runs or id in locked for id in mine)
                if (rate := self.rates[key]) is not None:
                    room = min(room, rate - len(self.started[key]) - sum(id in locked for id in mine))
                    room = 0 if self.excess(key) else room
                found[key] = free if key is None or not self.spec.is_limited else free[: max(room, 0)]
            elif key is None:
                found[key] = free
            else:
                letters = [id for id, row in mine.items() if row["status"] == "discarded"]
                first = min(open_, default=0)
                is_next = first in free and not any(id in runs or id in locked for id in mine)
                found[key] = [first] if is_next and first < min(letters, default=first + 1) else []
        return found

    @staticmethod
    def has_attempts(row: Any) -> bool:
        return bool(row["attempt"] < row["max_attempts"])

    @staticmethod
    def place(row: Any) -> tuple[Any, ...]:
        if row["status"] == "available":
            return (0, row["priority"], row["available_at"], row["id"])
        return (1, row["available_at"], row["id"])

    def check(self, rows: dict[int, Any], may: dict[str | None, list[int]], claimed: Sequence[int], size: int) -> None:
        """Check that the tasks may start, come first in their keys, and are as many as can be."""
        assert len(set(claimed)) == len(claimed)
        by_key: dict[str | None, set[int]] = defaultdict(set)
        for id in claimed:
            by_key[rows[id][self.column.name]].add(id)
        for key, some in by_key.items():
            expected = may[key]
            assert some <= set(expected), (key, some, expected)
            if self.spec.sequence is None:
                assert some == set(expected[: len(some)]), (key, some, expected)
        assert len(claimed) == min(size, sum(map(len, may.values()))), (may, claimed, size)

    # -- operations ---------------------------------------------------------------------------------------------------

    def where(self) -> list[Any]:
        return [or_(self.column.is_(None), self.column.not_in(sorted(self.paused)))] if self.paused else []

    def claim_in(self, session: Actor, size: int, **options: Any) -> list[Any]:
        return list(session.claim_many(self.model, *self.where(), limit=size, **options))

    def claim(self, locked: Sequence[int] = ()) -> None:
        rows = self.rows()
        may, size = self.startable(rows, locked), self.chance.choice((1, 2, 3, 9))
        with self.db.session() as session:
            tasks = self.claim_in(session, size, lease=timedelta(hours=1))
            claims = {task.id: claim_of(task) for task in tasks}
            if not locked or not self.spec.is_limited:  # a claim may lock more slots than it uses
                self.check(rows, may, list(claims), size)
            assert all(id in may[rows[id][self.column.name]] for id in claims)
            if self.chance.random() < 0.2:
                session.rollback()
                return
            session.commit()
        self.hold(rows, claims)

    def hold(self, rows: dict[int, Any], claims: dict[int, Claim]) -> None:
        """Take committed claims into account."""
        self.lost += [self.claims[id] for id in claims if id in self.claims]
        self.claims |= claims
        for id, claim in claims.items():
            key = rows[id][self.column.name]
            if self.rates[key] is not None:
                self.started[key].append(claim)

    def claim_beside_an_open_claim(self) -> None:
        if self.db.case.one_writer:
            return self.claim()
        rows, lease = self.rows(), self.chance.choice((timedelta(hours=1), None))
        may, size = self.startable(rows), self.chance.choice((1, 3))
        with self.db.session() as session:
            tasks = self.claim_in(session, size, lease=lease)
            claims = {task.id: claim_of(task) for task in tasks}
            self.check(rows, may, list(claims), size)
            self.claim(list(claims))
            if lease is None or self.chance.random() < 0.5:
                session.rollback()
                return None
            session.commit()
        self.hold(rows, claims)
        return None

    def enqueue(self) -> None:
        late = {"status": "scheduled", "available_at": TOMORROW}
        for _ in range(self.chance.choice((1, 2, 5))):
            number = self.ends[0] = self.ends[0] + 1
            row = {"available_at": PAST + timedelta(minutes=self.chance.randrange(9)), "created_at": PAST}
            row |= {self.column.name: self.chance.choice(KEYS), "priority": self.chance.choice((0, 0, 1, -1))}
            self.db.insert(self.model, [{"id": number, **row, **(late if self.chance.random() < 0.2 else {})}])

    def settle(self) -> None:
        way = self.chance.choice(("complete", "complete", "complete", "fail", "snooze", "release", "discard", "cancel"))
        if self.lost:
            with pytest.raises(ClaimLostError):
                self.db.committed.complete(self.lost.pop())
        if not self.claims:
            return
        id, claim = self.chance.choice(list(self.claims.items()))
        more = {"fail": ("broken",), "discard": ("broken",), "snooze": (timedelta(hours=9),)}.get(way, ())
        getattr(self.db.committed, way)(claim, *more)
        del self.claims[id]
        if way == "release" and self.gives_back:
            for started in self.started.values():
                started[:] = [each for each in started if each != claim]

    def operate(self) -> None:
        way, rows = self.chance.choice(("retry", "rerun", "cancel", "run_now", "run_now")), self.rows()
        states = {"retry": ("discarded", "retryable"), "rerun": FINAL, "run_now": ("scheduled",)}.get(way)
        found = [id for id, row in rows.items() if states is None or row["status"] in states]
        runs = {rows[id][self.column.name] for id in self.claims}
        beside = [id for id in found if rows[id][self.column.name] in runs]
        id = self.chance.choice(beside or found or [0])
        if getattr(self.db.committed, way)(self.model, self.model.id == id) and id in self.claims:
            self.lost.append(self.claims.pop(id))

    def prune(self) -> None:
        before = self.rows()
        self.db.committed.prune(self.model, timedelta(0))
        gone = [before[id] for id in before.keys() - self.rows().keys()]
        assert all(row["status"] in FINAL for row in gone)
        if self.spec.sequence is not None:
            assert all(row["status"] != "discarded" or row["account"] is None for row in gone)

    def crash(self) -> None:
        """Let the leases of all tasks of a key end, with those of their slots."""
        key, table = self.chance.choice(KEYS), self.model.__table__
        ended = update(table).values(available_at=PAST).where(table.c.status == "running")
        self.db.execute(ended.where(self.column.is_(None) if key is None else self.column == key))
        if self.spec.is_limited and key is not None:
            self.db.execute(self.slots_of(key, Slot.slot_number > 0))

    @staticmethod
    def slots_of(key: str, *where: Any) -> Any:
        """Return the UPDATE that lets the time of slots, or places, pass."""
        return update(Slot.__table__).values(available_at=PAST).where(Slot.slot_key == key, *where)

    def pause(self) -> None:
        self.paused ^= {self.chance.choice(("a", "b", "gold"))}

    def excess(self, key: str | None) -> list[Claim]:
        """Return the oldest claims, which a lowered rate leaves no room for: as long as they count, none starts."""
        read = select(Slot.claimed_by).where(Slot.slot_key == key, Slot.slot_number < 0, Slot.max_attempts == 0)
        with self.db.engine.connect() as connection:
            holders = set(connection.scalars(read))
        return [each for each in self.started[key] if holder(each, PLACE) in holders]

    def pass_time(self) -> None:
        """Let the first starts of a key that count for its rate be as long ago as that they do not any more."""
        key = self.chance.choice(KEYS)
        if started := self.started[key]:
            first = [each for each in started if each.token == started[0].token or not self.gives_back]
            self.started[key] = [each for each in started if each not in first]
            holders = [holder(each, PLACE) for each in first]
            of_first = Slot.claimed_by.in_(holders) if self.gives_back else Slot.slot_number < 0
            self.db.execute(self.slots_of(key, of_first))

    def set_rate(self) -> None:
        key = self.chance.choice(("a", "b"))
        if self.spec.is_limited and self.gives_back:
            self.rates[key] = self.chance.choice((None, 1, 2, 3, 4, 5, 6))
            if self.rates[key] is None:
                self.started[key].clear()
            rate = self.rates[key] and Rate(self.rates[key], per=HOUR)
            self.db.committed.set_rate(self.model, key, rate)

    def set_limit(self) -> None:
        key = self.chance.choice(("a", "b"))
        running = sum(row["status"] == "running" and row[self.column.name] == key for row in self.rows().values())
        if self.spec.is_limited and (self.limits[key] != FAR or not running):  # no slots hold what runs without a limit
            self.limits[key] = self.chance.randrange(running, running + 3)
            self.db.committed.set_limit(self.model, key, self.limits[key])


@pytest.mark.parametrize(
    ("model", "places"), [(Crawl, 100), (Delivery, 100), (Transfer, 100), (Consignment, 100), (Consignment, 2)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_starts_is_what_may_start(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch, model: Any, places: int, seed: int
) -> None:
    """With two places, those of the rate are worth two starts each."""
    monkeypatch.setattr("sqlqueue.kinds.limits.PLACES", places)
    turns._rotations.clear()
    walk = Walk(sync_db, model, seed)
    walk.gives_back = places > 2
    ways = [walk.claim] * 5 + [walk.enqueue] * 4 + [walk.settle] * 5
    ways += [walk.operate] * 5 + [walk.claim_beside_an_open_claim, walk.crash, walk.pause, walk.set_limit, walk.prune]
    if walk.spec.is_limited:
        ways += [walk.pass_time, walk.pass_time, walk.set_rate]
    for _ in range(STEPS):
        walk.chance.choice(ways)()
    walk.rows()
