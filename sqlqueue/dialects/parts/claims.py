"""How rows are claimed: by default in two steps, which lock them and then write to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from ...queue.spec import Identity, QueueSpec
from ...sql.selection import Assignment, Pick, write
from .keys import ByKey
from .rows import Parameters, Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taking:
    """What is done to the rows of a claim besides locking them."""

    pick: Pick
    assignments: Sequence[Assignment] = ()
    parameters: Parameters | None = None
    """Of the assignments."""
    delete: bool = False
    options: Sequence[ExecutableOption] = ()
    """The loader options of the instances."""


class Claims:
    """The course of a claim."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        """Lock the rows of ``pick``; returns their primary keys, in order."""
        if self.rows.locking.is_served(pick):
            return self.rows.lock_picked(session, pick)
        return self.rows.lock_seen(session, pick)

    def take(self, session: Session, taking: Taking) -> list[Any]:
        """Lock the rows, write the assignments to them or delete them; returns the instances, in order."""
        pick, rows = taking.pick, self.rows
        spec, keys = pick.spec, rows.locking.keys
        identities = self.lock(session, pick)
        for some in keys.batches(spec, identities if taking.assignments else ()):
            count = keys.named_for(spec, len(some))
            make = partial(self._writing, spec, count, taking.assignments)
            writing = pick.made.get((self, taking.assignments, count), make)
            rows.execute(session, spec, writing, {**keys.key_names(spec, some), **(taking.parameters or {})})
        tasks = rows.load(session, spec, identities, taking.options, latest=not taking.assignments)
        if taking.delete:
            rows.delete(session, spec, identities)
        return tasks

    def _writing(self, spec: QueueSpec, count: int, assignments: Sequence[Assignment]) -> ByKey:
        keys = self.rows.locking.keys
        return keys.by_key(spec, write(spec, keys.keys_named(spec, count), assignments))
