"""Takes the rows of tasks: locks them, and writes the claim."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import and_
from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..dialects.parts.claims import Taking
from ..dialects.parts.rows import Parameters
from ..model.history import history_of
from ..sql.changes import Assignment
from ..sql.states import is_held
from ..transaction.connection import open_to_claim
from ..transaction.ledger import ledger_of
from .claim_query import ClaimQuery, check_order
from .recording import ABANDONED, last_claims, record
from .unreadable import set_aside

PATIENCE = 1.0
"""Seconds for which a claim goes on after it has met a row that cannot be read."""


class Patience:
    """Tells when a claim that meets rows that cannot be read has to return.

    There can be any number of them, and a transaction that takes too long would be rolled back, and meet them again.
    """

    def __init__(self) -> None:
        self._until = math.inf

    def begin(self) -> None:
        """Let the time begin, if it has not yet."""
        self._until = min(self._until, time.monotonic() + PATIENCE)

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._until


def take(
    session: Session,
    query: ClaimQuery,
    limit: int,
    assignments: Sequence[Assignment] = (),
    parameters: Parameters | None = None,
    *,
    delete: bool = False,
    patience: Patience | None = None,
) -> list[Any]:
    """Take available rows first, then due rows if there are fewer than ``limit``.

    Rows that cannot be read are set aside, and others taken instead, until the ``patience`` of the claim is over.
    """
    adapter = open_to_claim(session, query.spec, holds=not assignments and not delete)
    spec, tasks = query.spec, list[Any]()
    passed, patience = ledger_of(session).locked(spec.table), patience or Patience()
    for step in query.steps:
        while len(tasks) < limit:
            pick = step(limit - len(tasks))
            if passed:
                pick = pick.without(adapter.keys.key_in(spec, passed))
            check_order(adapter, pick, query.order)
            taking = Taking(
                pick=pick, assignments=assignments, parameters=parameters, delete=delete, options=query.options
            )
            records = pick.takes_over and (assignments or delete) and history_of(spec.table.metadata)
            taken = _take_recorded(session, adapter, taking) if records else adapter.claims.take(session, taking)
            if not taking.unreadable:
                tasks += taken
                break
            patience.begin()
            set_aside(adapter, session, spec, taking.unreadable, claimed=bool(assignments))
            # a claim that has to search for its rows also finds those of the step before
            before = {spec.identity_of(task) for task in tasks}
            tasks += [task for task in taken if spec.identity_of(task) not in before]
            passed = [*passed, *map(spec.identity_of, tasks), *(each.identity for each in taking.unreadable)]
            if patience.is_over:
                return tasks
    return tasks


def _take_recorded(session: Session, adapter: Adapter, taking: Taking) -> list[Any]:
    """Take tasks as :meth:`.Claims.take` does, and record the attempts of those whose claimers have crashed.

    The rows are locked first: afterwards they show only the new claim.
    """
    pick, tasks = taking.pick, list[Any]()
    spec = pick.spec
    for some in adapter.keys.batches(spec, adapter.claims.lock(session, pick)):
        named = adapter.keys.key_in(spec, some)
        crashed = last_claims(adapter, session, spec, and_(named, is_held(spec)))
        chosen = replace(pick, where=(named,), limit=len(some), index=None, divided=None, exact=True)
        taken = adapter.claims.take(session, replace(taking, pick=chosen))
        found = {spec.identity_of(task) for task in taken}
        if taking.assignments:  # otherwise, setting rows aside records them
            found.update(each.identity for each in taking.unreadable)
        record(adapter, session, [claim for claim in crashed if claim.identity in found], ABANDONED)
        tasks += taken
    return tasks
