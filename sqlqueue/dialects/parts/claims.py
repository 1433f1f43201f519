"""Claims rows: by default in two steps, which lock rows and then write to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from ...queue.spec import Identity, QueueSpec
from ...sql.rows import Assignment, write
from ...sql.selection import Pick
from .keys import ByKey
from .rows import FURTHER, OTHERS, Parameters, Rows, Unreadable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taking:
    """The specification of a claim: the rows to lock, and the assignments to write or the deletion."""

    pick: Pick
    assignments: Sequence[Assignment] = ()
    parameters: Parameters | None = None
    """The parameters of the assignments."""
    delete: bool = False
    """Whether to delete the rows instead of writing to them."""
    options: Sequence[ExecutableOption] = ()
    """The loader options of the instances."""
    unreadable: list[Unreadable] = field(default_factory=list)
    """Receives the rows that are taken, but not deleted, and cannot be read."""


class Claims:
    """Executes claims."""

    sizes_named: ClassVar[bool] = False
    """Whether a claim of named rows is limited to their number, rather than one statement serving any number."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def lock(self, session: Session, pick: Pick, *, holds: bool = False) -> list[Identity]:
        """Lock the rows of ``pick``; return their primary keys, in order.

        ``holds``: the locks are kept as long as a handler runs, so no other row may stay locked.
        """
        if self.rows.locking.is_served(pick):
            return self.rows.lock_picked(session, pick)
        return self.rows.lock_seen(session, pick)

    def is_free(self, session: Session, pick: Pick) -> bool:
        """Return whether the row of ``pick`` can be locked at once. The caller must roll the session's transaction
        back."""
        return bool(self.lock(session, pick))

    def take(self, session: Session, taking: Taking) -> list[Any]:
        """Lock the rows, and write the assignments or delete the rows; return the instances, in order.

        Rows that cannot be read are not among them, see :attr:`.Taking.unreadable`.
        """
        pick, rows = taking.pick, self.rows
        spec, keys = pick.spec, rows.locking.keys
        identities = self.lock(session, pick, holds=not taking.assignments)
        for some in keys.batches(spec, identities if taking.assignments else ()):
            count = keys.named_for(spec, len(some))
            make = partial(self._writing, spec, count, taking.assignments)
            writing = pick.made.get((self, taking.assignments, count), make)
            rows.execute(session, spec, writing, {**keys.key_names(spec, some), **(taking.parameters or {})})
        tasks = self._load(session, taking, identities)
        if taking.delete:
            rows.delete(session, spec, [spec.identity_of(task) for task in tasks])
        return tasks

    def _load(self, session: Session, taking: Taking, identities: Sequence[Identity]) -> list[Any]:
        """Load the instances of rows that are locked, and written unless they are to be deleted."""
        spec, latest = taking.pick.spec, not taking.assignments
        return self.rows.load(session, spec, identities, taking.options, latest=latest, unreadable=taking.unreadable)

    def take_seen(self, session: Session, taking: Taking) -> list[Any]:
        """Do the work of :meth:`take` for a divided pick, by primary key: read rows without locks, then take some until
        there are enough.

        For engines where :meth:`take` is one statement, which cannot read the parts in one order and lock as it reads.
        """
        pick, found, seen = taking.pick, list[Any](), set[Identity]()
        number = pick.limit + OTHERS
        while True:
            candidates = self.rows.look(session, pick, number)
            keys = [key for key in candidates if key not in seen]
            while keys and (room := pick.limit - len(found)):
                size = min(room, self.rows.locking.keys.most(pick.spec))
                found += self._take_keys(session, taking, keys[:size])
                keys = keys[size:]
            if len(found) == pick.limit or len(candidates) < number:
                return found
            seen.update(candidates)
            number *= FURTHER

    def _take_keys(self, session: Session, taking: Taking, keys: Sequence[Identity]) -> list[Any]:
        """Take the ``keys`` that are not locked and still match, in their order."""
        pick, by = taking.pick, self.rows.locking.keys
        spec, number = pick.spec, len(keys)
        count = number if self.sizes_named else by.named_for(spec, number)
        named = pick.made.get((self, "named", count), partial(self._named, pick, count))
        parameters = {**(taking.parameters or {}), **by.key_names(spec, keys)}
        taken = self.take(session, replace(taking, pick=named, parameters=parameters))
        found = {spec.identity_of(task): task for task in taken}
        return [found[key] for key in keys if key in found]

    def _named(self, pick: Pick, count: int) -> Pick:
        keys = self.rows.locking.keys
        return pick.named(keys.keys_named(pick.spec, keys.named_for(pick.spec, count)), count or keys.most(pick.spec))

    def _writing(self, spec: QueueSpec, count: int, assignments: Sequence[Assignment]) -> ByKey:
        keys = self.rows.locking.keys
        return keys.by_key(spec, write(spec, keys.keys_named(spec, count), assignments))
