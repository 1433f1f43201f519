"""How a settlement is written: one fenced statement for claims that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlalchemy.orm import Session

from ..claims import Claim
from ..dialects.base import Adapter
from ..spec import Identity
from ..statements import Assignment, write
from ..transitions import Held

Apply: TypeAlias = Callable[[Adapter, Session, Held, Sequence[Claim]], set[Identity]]
"""Writes to the rows of claims that are still theirs, and says which those are."""


def updating(values: Callable[[Held, Sequence[Claim]], Sequence[Assignment]]) -> Apply:
    def apply(adapter: Adapter, session: Session, held: Held, claims: Sequence[Claim]) -> set[Identity]:
        fence = held.fence(claims, adapter.key_in)
        return adapter.change(session, held.spec, write(held.spec, fence, values(held, claims)), identities(claims))

    return apply


def identities(claims: Sequence[Claim]) -> list[Identity]:
    return [claim.identity for claim in claims]
