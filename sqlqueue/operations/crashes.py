"""Handles the tasks of a worker whose process died."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import literal_column
from sqlalchemy.orm import Session

from .._support.claim import Claim, WorkerTokens
from .._support.processes import exit_text
from ..dialects.base import Adapter
from ..queue.spec import Identity, QueueSpec
from ..sql.changes import write
from ..sql.selection import picks
from ..sql.states import is_due, is_final, is_held
from ..transaction.connection import Access, open_
from .session_criteria import within
from .settlements import DiscardingCrashed, ReleasingCrashed, Returning, Settlement, UncountingCrash
from .settling import settle_some


class Started(NamedTuple):
    """A task that a process was running."""

    table: str
    identity: Identity
    token: int | None
    """The token of its claim; ``None`` if the claim only locked its row."""
    counted: bool
    """Whether the task is a suspect whose crash was counted in advance, instead of a task that this process ran."""


class Crash(NamedTuple):
    """The death of a worker's process."""

    worker: int
    """The number in the tokens of its claims."""
    status: int
    """The exit status, or the negative number of a signal."""
    started: tuple[Started, ...]
    complete: bool
    """Whether ``started`` contains all tasks that were running."""


class Recovered(NamedTuple):
    """The tasks of a process that died."""

    returned: int
    """How many were released because they had not been started, or had already ended."""
    suspects: list[Claim]
    discarded: list[Claim]
    """Suspects that have crashed as many processes as ``max_crashes`` allows."""
    text: str
    """Their error."""


def crash_text(status: int, running: int) -> str:
    """Return the error of tasks whose process died while ``running`` tasks ran in it."""
    others = "alone" if running == 1 else f"with {running - 1} other tasks"
    return f"its process {exit_text(status)} while it ran {others}"


def too_many_crashes(crashes: int, reason: str | None) -> str:
    """Return the error of a task that has crashed ``crashes`` processes, the last for this ``reason`` if it is
    known."""
    return f"crashed {crashes} processes" + (f": {reason}" if reason and reason.startswith("its process ") else "")


def recover(session: Session, spec: QueueSpec, crash: Crash) -> Recovered:
    """Release the tasks that a dead process held, in the session's transaction.  None of their attempts count.

    The tasks that ran in it become suspects; those that have now crashed ``max_crashes`` processes are discarded.
    """
    adapter = open_(session, spec, Access.CHANGE)
    mine = [each for each in crash.started if each.table == spec.table.fullname]
    running, counted = ({(m.identity, m.token) for m in mine if m.counted is each} for each in (False, True))
    text = crash_text(crash.status, sum(not each.counted for each in crash.started) or 1)
    returning, uncounting, suspecting = Returning(), UncountingCrash(), ReleasingCrashed(text)
    alike = defaultdict[Settlement, list[Claim]](list)
    for claim, crashes in _held(adapter, session, spec, WorkerTokens(crash.worker).bounds):
        one = claim.identity, claim.token
        if crash.complete and one not in running:
            how: Settlement = uncounting if one in counted else returning
        elif crashes >= spec.options.max_crashes:
            how = DiscardingCrashed(too_many_crashes(crashes, text))
        else:
            how = suspecting
        alike[how].append(claim)
    settled = {how: _settled(session, claims, how) for how, claims in alike.items()}
    locked = _suspect_locked(adapter, session, spec, [each for each in mine if each.token is None], text)
    return Recovered(
        returned=sum(len(settled.get(how, ())) for how in (returning, uncounting)),
        suspects=[*settled.get(suspecting, ()), *locked],
        discarded=[claim for how, claims in settled.items() if isinstance(how, DiscardingCrashed) for claim in claims],
        text=text,
    )


def _settled(session: Session, claims: Sequence[Claim], how: Settlement) -> list[Claim]:
    """Settle the claims, and return those that were not lost."""
    lost = set(settle_some(session, claims, how))
    return [claim for claim in claims if claim not in lost]


def _held(adapter: Adapter, session: Session, spec: QueueSpec, bounds: tuple[int, int]) -> list[tuple[Claim, int]]:
    """Return the claims with tokens within ``bounds`` that still hold their rows, and how often each task has
    crashed."""
    ready, due = picks(spec, within(session, spec))
    step = ready if adapter.schema.indexes_all else due  # running tasks are few, but due tasks can be many
    state = (spec["finished_at"].is_(None), is_held(spec), is_due(spec), spec["claim_token"].between(*bounds))
    pick = replace(step(1), state=state, exact=False)
    roles = ("attempt", "claim_token", "claimed_by", "claimed_at")
    read = pick.select(spec["crashes"], *spec.primary_key, *(spec[role] for role in roles))
    rows: Any = adapter.rows.execute(session, spec, read)
    width = len(spec.primary_key)
    return [(Claim(spec.entity, tuple(row[:width]), *row[width:]), crashes) for crashes, *row in rows]


def _suspect_locked(
    adapter: Adapter, session: Session, spec: QueueSpec, started: Sequence[Started], text: str
) -> list[Claim]:
    """Count the crash of tasks that were claimed by locks alone, whose rows do not show the claim."""
    values = [(spec["crashes"], spec["crashes"] + literal_column("1")), (spec["error"], text)]
    changed: list[Identity] = []
    for some in adapter.keys.batches(spec, [each.identity for each in started]):
        unfinished = adapter.keys.key_in(spec, some) & ~is_final(spec)
        changed += adapter.rows.change(session, spec, write(spec, unfinished, values), some)
    return [Claim(spec.entity, identity, 0) for identity in changed]
