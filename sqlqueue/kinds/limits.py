"""Queues that limit how many tasks with the same key run at once, and the slots that running tasks hold."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Column, Integer, case
from sqlalchemy.orm import Mapped, Session

from .._support import checks
from .._support.claim import Claim
from ..dialects import key_type
from ..dialects.base import Adapter
from ..lifecycle.fenced import FencedClaims
from ..lifecycle.kind import ClaimTogether, Kind, KindIndex, Partition, Take, kinds_in
from ..lifecycle.reasons import Reason, SeenTask
from ..model.columns import LONGEST_KEY, optional
from ..model.mixins import QueueMixin
from ..queue.options import QueueOptions
from ..queue.spec import Identity, QueueSpec
from ..sql.states import is_held
from .full_keys import full_key
from .limited_claims import LimitedClaim
from .slots import Slots


class Limits(Kind):
    """Limits running tasks: claims each with a slot, frees slots when claims are settled, extends their leases."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if options.slots is None:
            needed = "slots= is missing: name the model that derives from SlotMixin: QueueOptions(slots=Slot)"
            return needed if "limit_key" in roles else None
        if "limit_key" not in roles:
            return "slots= is for models that derive from LimitMixin"
        if SLOTS not in kinds_in(options.slots):
            return f"slots= must name a model of slots: {options.slots.__name__} does not derive from SlotMixin"
        return None

    def overwritten(self, spec: QueueSpec, values: dict[Column[Any], Any]) -> None:
        """Keep the key of a running task, which holds one of the key's slots."""
        key = spec["limit_key"]
        if key in values:
            values[key] = case((is_held(spec), key), else_=values[key])

    def claim_together(
        self, adapter: Adapter, session: Session, spec: QueueSpec, take: Take, lease: timedelta | None
    ) -> ClaimTogether:
        """Claim each task together with a slot of its key."""
        return LimitedClaim(session, adapter, spec, take, lease)

    def settled(self, adapter: Adapter, session: Session, spec: QueueSpec, claims: Sequence[Claim]) -> None:
        Slots(session, adapter, spec).free(claims)

    def extend(self, fenced: FencedClaims, lease: timedelta) -> set[Identity]:
        slots = Slots(fenced.session, fenced.adapter, fenced.spec)
        return {claim.identity for claim in slots.extend(fenced.claims, lease, waits=fenced.fence.waits)}

    def hindrances(self, adapter: Adapter, session: Session, seen: SeenTask) -> Iterable[Reason]:
        return () if seen.values["limit_key"] is None else full_key(adapter, session, seen)

    def announces(self, spec: QueueSpec, how: str) -> bool:
        return True

    def continues(self, spec: QueueSpec) -> bool:
        return True


class SlotRows(Kind):
    """The rows that represent slots.  They are not tasks, and are found by the claim that holds them."""

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("holder", [spec["claimed_by"]], is_held(spec))


LIMITS = Limits(
    columns={"limit_key": lambda _: optional(key_type(LONGEST_KEY))},
    checks={"limit_key": checks.key},
    untouched=("limit_key",),
    partition=Partition("limit_key", width=2),
    holds_slots=True,
)


SLOTS = SlotRows(
    columns={
        "slot_key": lambda _: {"type_": key_type(LONGEST_KEY), "primary_key": True},
        "slot_number": lambda _: {"type_": Integer(), "primary_key": True, "autoincrement": False},
    },
    checks={"slot_key": checks.key},
    partition=Partition("slot_key", width=1),
    holds_tasks=False,
)


class LimitMixin(QueueMixin):
    """A queue that limits how many tasks with the same ``limit_key`` run at once, across all workers.

    The limit is the number of the key's slots in the model that ``QueueOptions(slots=...)`` names.  A key at its limit
    does not delay tasks of other keys.  A claim can hold slots that it does not use until its transaction ends: commit
    claims soon.

    Tasks are claimed in the queue's order, except during concurrent claims: instead of a task that another claim has
    locked, the claim takes the next task of the same key, even if a task of another key comes before it.
    """

    __queue_kind__: ClassVar[Kind | None] = LIMITS

    if TYPE_CHECKING:
        limit_key: Mapped[str | None]
        """The key; a task without a key is not limited."""


class SlotMixin(QueueMixin):
    """The slots of a :class:`.LimitMixin`: each is held by one running task, with the same lease.

    The mixin declares the primary key.  Rows are created when they are needed, see :func:`.set_limit`.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(max_attempts=2**31 - 1, notify=False)
    __queue_kind__: ClassVar[Kind | None] = SLOTS

    if TYPE_CHECKING:
        slot_key: Mapped[str]
        """The ``limit_key`` of the tasks that may take the slot."""
        slot_number: Mapped[int]
        """The number of the slot; number 0 represents the key itself, and is never held."""
