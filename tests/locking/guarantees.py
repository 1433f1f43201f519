"""The guarantees that hold for every interleaving of transactions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Table

from sqlqueue import claim_of
from tests.locking.interleaving import COMMIT, Actor, Checker
from tests.locking.rows import Row
from tests.locking.server import Resource, Server, Transaction


class Violation(AssertionError):
    """A violation of one of the library's guarantees."""


class ClaimedTwice(Violation):
    """A row went to two claimers."""


class Waits(Violation):
    """A claim, or another step that must not wait, has waited."""


class WaitsForUnconcerned(Violation):
    """A statement waits for a row that it is not about."""


class LocksTooMuch(Violation):
    """A claim keeps a lock on a row that it does not return, although no other transaction was involved.

    The same for other steps that must lock only their own rows."""


class FindsTooLittle(Violation):
    """A claim returns fewer rows than requested although another row was free all the time."""


class TakesWrongly(Violation):
    """A claim returns a row that is not claimable or does not match its criteria."""


class OutOfTurn(Violation):
    """A message goes to a claimer while another one has an earlier or later one of the same key."""


class Deadlock(Violation):
    """Transactions wait for one another."""


class LeaseNotExtended(Violation):
    """A heartbeat skips the row of a claim although its own handler has not locked it: the lease may expire."""


WAITING: frozenset[type[Violation]] = frozenset({Waits, WaitsForUnconcerned, LocksTooMuch, FindsTooLittle, Deadlock})
"""Violations that cost time, but neither run a task twice nor lose one."""


def can_be_claimed(row: Row) -> bool:
    now = datetime.now(UTC).isoformat(sep=" ")
    if row["status"] in ("scheduled", "retryable", "running"):
        return row["available_at"] <= now and row["attempt"] < row["max_attempts"]
    return row["status"] == "available" and row["available_at"] <= now


@dataclass
class _Watched:
    """A claim, or another step that must lock only its own rows, from its beginning to its end."""

    mine: set[int]
    """The rows that its transaction had locked before."""
    its: set[int]
    """The rows that it is about."""
    free: set[int]
    """The rows that a claim may take."""
    theirs: set[int]
    touched: set[tuple[Transaction, Resource]] = field(default_factory=set)
    """The rows that other transactions have locked in the meantime."""
    leases: dict[int, str] = field(default_factory=dict)
    """The claimers of the rows whose leases it must extend."""


class Guarantees(Checker):
    """The guarantees for the rows of one table."""

    def __init__(
        self, server: Server, table: Table, line: str | None = None, allowed: Collection[type[Violation]] = ()
    ) -> None:
        """``line``: the column that groups messages; one claimer at a time gets the messages of a group, in order.
        ``allowed``: the guarantees that are not checked.
        """
        self._server = server
        self._allowed = tuple(allowed)
        self._table = table
        self._line = line
        self._lines: dict[int, Any] = {}
        """The rows, deleted ones included."""
        self._owner: dict[int, Actor] = {}
        self._settled: set[str] = set()
        self._watched: dict[str, _Watched] = {}
        self._waiting: list[Actor] = []
        self._actors: dict[str, Actor] = {}
        self._skipped: list[tuple[int, str]] = []
        """The rows that heartbeats have skipped, with their claimers, while a claim had locked them."""
        server.watch = self._watch

    def begins(self, actor: Actor) -> None:
        assert actor.step is not None
        self._actors[actor.name] = actor
        if not (actor.step.claims or actor.step.keeps_to_its_rows or actor.step.extends):
            return
        mine = self._locked(actor.name)
        theirs = set().union(*(self._locked(name) for name in self._server.open if name != actor.name))
        rows = self._server.committed[self._table]
        its = {number for number, row in rows.items() if actor.step.matches(row)}
        free = {number for number in its if can_be_claimed(rows[number]) and not self._is_held_back(rows, number)}
        leases = {number: self._owner[number].name for number in self._owner if self._is_running(number)}
        held = {number for name in self._server.open for number in self._locked(name) if leases.get(number) == name}
        leases = {number: name for number, name in leases.items() if actor.step.extends and number not in held}
        self._watched[actor.name] = _Watched(mine, its, free - mine - theirs, theirs, leases=leases)

    def ends(self, actor: Actor, found: Any, *, lost: bool) -> None:
        assert actor.step is not None
        if actor.step.claims:
            self._judge_claim(actor, self._numbers(found))
            self._judge_skipped(actor.name)
        elif actor.step.keeps_to_its_rows:
            self._judge_locks(actor, self._watched.pop(actor.name))
        elif actor.step.extends:
            self._judge_leases(actor, self._watched.pop(actor.name))
        self._judge_waiting_for(actor)
        if actor.step.settles:
            self._settled.add(actor.name)
        if actor.step is COMMIT:
            gone = {actor} if actor.name in self._settled else set()
            self._settled.discard(actor.name)
            self._owner = {
                number: owner
                for number, owner in self._owner.items()
                if owner not in gone and not self._is_final(number)
            }

    def _judge_claim(self, actor: Actor, found: set[int]) -> None:
        watched = self._watched.pop(actor.name)
        assert actor.step is not None
        for number in found:
            if self._owner.get(number, actor) is not actor:
                self._raise(ClaimedTwice(f"row {number} goes to {actor.name}, and {self._owner[number].name} has it"))
            self._owner[number] = actor
            row = self._server.committed[self._table].get(number)
            if row is None or not can_be_claimed(row) or not actor.step.matches(row):
                self._raise(TakesWrongly(f"{actor.name} gets row {number}, which is {row}"))
            self._judge_turn(actor, number)
        theirs = watched.theirs | {self._number(resource) for _, resource in watched.touched}
        surplus = self._locked(actor.name) - watched.mine - found - theirs
        if surplus:
            self._raise(LocksTooMuch(f"{actor.name} gets {found}, and keeps a lock on {surplus}"))
        missing = watched.free - found - theirs - self._beside(theirs)
        if len(found) < actor.step.limit and missing:
            self._raise(FindsTooLittle(f"{actor.name} gets {found} of {actor.step.limit}, and {missing} were free"))

    def _judge_turn(self, actor: Actor, number: int) -> None:
        for other in self._beside({number}) if self._line else ():
            owner = self._owner.get(other, actor)
            if owner is not actor:
                self._raise(OutOfTurn(f"{actor.name} gets row {number}, and {owner.name} has {other} of the same key"))

    def _judge_locks(self, actor: Actor, watched: _Watched) -> None:
        theirs = watched.theirs | {self._number(resource) for _, resource in watched.touched}
        rows = self._server.latest()[self._table]
        its = watched.its | {number for number, row in rows.items() if actor.step.matches(row)}  # type: ignore[union-attr]
        surplus = self._locked(actor.name) - watched.mine - its - theirs
        if surplus:
            self._raise(LocksTooMuch(f"{actor.name}'s {actor.step} keeps a lock on {surplus}"))

    def _judge_leases(self, actor: Actor, watched: _Watched) -> None:
        written = {number for _, number in self._server.transaction(actor.name).changes}
        for number, name in watched.leases.items():
            by_owner = {number for transaction, each in watched.touched if transaction.name == name}
            if self._is_running(number) and number not in by_owner | written:
                self._skipped.append((number, name))
        # the next heartbeat extends a lease whose row is locked no longer than another claim takes
        for other in self._server.open.keys() - self._watched.keys() - {actor.name}:
            self._judge_skipped(other)

    def _judge_skipped(self, holder: str) -> None:
        """Check the rows that heartbeats have skipped, and that this transaction keeps locked."""
        for number, name in self._skipped:
            if name != holder and number in self._locked(holder) and self._is_running(number):
                self._raise(LeaseNotExtended(f"a heartbeat skips row {number} of {name}, which {holder} has locked"))

    def waits(self, actor: Actor, resource: Resource, holders: list[str]) -> None:
        self._waiting.append(actor)
        for holder in {self._actors[name] for name in holders if self._actors[name].step is COMMIT}:
            self._judge_waiting_for(holder)

    def _judge_waiting_for(self, holder: Actor) -> None:
        """Check the transactions that wait for locks left by a step."""
        self._waiting = [actor for actor in self._waiting if actor.wait]
        for actor in self._waiting:
            step, (resource, mode) = actor.step, actor.wait  # type: ignore[misc]
            waiting = self._server.transaction(actor.name)
            if holder.name not in [each.name for each in self._server.locks.in_the_way(waiting, resource, mode)]:
                continue
            if step.claims or step.never_waits:
                self._raise(Waits(f"{actor.name}'s {step} waits for {resource} of {holder.name}"))
            versions = [rows[self._table].get(self._number(resource) or 0) for rows in self._server.both()]
            known = [row for row in versions if row is not None]
            if known and not any(map(step.matches, known)):
                self._raise(WaitsForUnconcerned(f"{actor.name}'s {step} waits for {resource} of {holder.name}"))

    def hangs(self, actors: list[Actor]) -> bool:
        self._raise(Deadlock(", ".join(f"{actor.name}'s {actor.step} waits for {actor.wait}" for actor in actors)))
        return True

    def aborts(self, actor: Actor) -> None:
        self._watched.pop(actor.name, None)
        self._settled.discard(actor.name)
        self._owner = {n: owner for n, owner in self._owner.items() if owner is not actor or self._is_running(n)}

    def _raise(self, violation: Violation) -> None:
        if not isinstance(violation, self._allowed):
            raise violation

    def _watch(self, transaction: Transaction, resource: Resource, taken: bool) -> None:
        for name, watched in self._watched.items():
            if name != transaction.name:
                (watched.touched.add if taken else watched.touched.discard)((transaction, resource))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _numbers(self, tasks: Any) -> set[int]:
        key = [column.name for column in self._table.primary_key]
        identities = {claim_of(task).identity for task in tasks}
        rows = self._server.latest()[self._table]
        return {number for number, row in rows.items() if tuple(row[name] for name in key) in identities}

    def _is_running(self, number: int) -> bool:
        row = self._server.committed[self._table].get(number)
        return row is not None and row["status"] == "running"

    def _is_final(self, number: int) -> bool:
        row = self._server.committed[self._table].get(number)
        return row is not None and row["finished_at"] is not None

    def _is_held_back(self, rows: Mapping[int, Row], number: int) -> bool:
        """Return whether an earlier message of its line is unfinished."""
        if self._line is None or rows[number][self._line] is None:
            return False
        mine = [each for each in self._beside({number}) & rows.keys() if rows[each]["finished_at"] is None]
        return min(mine, default=number) < number

    def _beside(self, numbers: set[int | None]) -> set[int]:
        """Return the rows of the same lines."""
        if self._line is None:
            return set()
        self._lines |= {number: row[self._line] for number, row in self._server.committed[self._table].items()}
        lines = {self._lines[number] for number in numbers if number in self._lines} - {None}
        return {number for number, line in self._lines.items() if line in lines}

    def _locked(self, name: str) -> set[int]:
        held = self._server.held(self._server.transaction(name))
        return {number for resource in held if (number := self._number(resource)) is not None}

    def _number(self, resource: Resource) -> int | None:
        """Return the row of the table to which a lock belongs."""
        name, what = resource
        if name == self._table.name and isinstance(what, int):
            return what
        of_index = any(index.name == name for index in self._table.indexes)
        return what[0] if of_index and isinstance(what, tuple) else None
