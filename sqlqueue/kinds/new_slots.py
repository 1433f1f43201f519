"""Creates the slots of limit keys that are used for the first time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .._support.engines import separate_session
from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..queue.spec import QueueSpec, spec_of

ENDLESS = 2**31 - 1
"""The ``max_attempts`` of a usable slot.  A slot with 0 is retired: it is not taken again."""
_BATCH = 1_000
"""Slots inserted at a time: many keys with a high limit have more than fit into memory."""


def slots_of(spec: QueueSpec) -> QueueSpec:
    """Return the queue of slots of a limited queue; raise :class:`.ArgumentError` if the queue is not limited."""
    if spec.options.slots is None:
        raise ArgumentError(f"{spec.entity.__name__} has no limits: derive it from LimitMixin")
    return spec_of(spec.options.slots)


def create_slots(session: Session, adapter: Adapter, spec: QueueSpec, keys: Collection[str]) -> None:
    """Create the slots of new ``keys``, as many for each as the model's ``limit``.

    Uses its own transaction and connection, so that no other claim waits for the session's transaction.  If another
    transaction creates a key at the same time, its slots are kept.
    """
    slots, numbers = slots_of(spec), range(spec.options.limit + 1)
    if adapter.locking.one_writer:  # another connection could not write while this session does
        _SlotCreation(session, nullcontext, adapter, slots, numbers).of(sorted(keys))
    elif isinstance(session.get_bind(**slots.bind_arguments), Connection):
        _SlotCreation(session, partial(adapter.transactions.tentative, session), adapter, slots, numbers).of(
            sorted(keys)
        )
    else:
        with separate_session(session, slots.bind_arguments) as own:
            _SlotCreation(own, own.begin, adapter, slots, numbers).of(sorted(keys))


def make(session: Session, adapter: Adapter, slots: QueueSpec, keys: Iterable[tuple[str, int]]) -> None:
    """Insert slots.  Number 0 marks the key as known, and is held while the limit is 0."""
    names = [slots[role].name for role in ("slot_key", "slot_number", "max_attempts")]
    rows = (dict(zip(names, (key, number, ENDLESS if number else 0), strict=True)) for key, number in keys)
    while some := list(islice(rows, _BATCH)):
        adapter.rows.execute(session, slots, insert(slots.table), some)


class _SlotCreation:
    """Inserts the slots of new keys, each time in a transaction or savepoint that ``begin`` opens."""

    def __init__(
        self,
        session: Session,
        begin: Callable[[], AbstractContextManager[object]],
        adapter: Adapter,
        slots: QueueSpec,
        numbers: Sequence[int],
    ) -> None:
        self._session = session
        self._begin = begin
        self._adapter = adapter
        self._slots = slots
        self._numbers = numbers

    def of(self, keys: Sequence[str]) -> None:
        """Insert in primary key order, so that two transactions that insert the same keys cannot deadlock.

        The second one waits at the first slot 0 that both insert; slot 0 is never claimed, so it waits for no claim.
        """
        try:
            with self._begin():
                make(self._session, self._adapter, self._slots, ((key, n) for key in keys for n in self._numbers))
        except DBAPIError as error:
            if not self._adapter.errors.is_duplicate(error):
                raise
            for rest in self._rest(keys) if len(keys) > 1 else ():
                self.of(rest)

    def _rest(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Return the groups of keys to insert after a duplicate: the missing keys together if the read has shown the
        duplicate, otherwise each key alone, because the snapshot hides it.
        """
        with self._begin():
            there = self._known(keys)
        missing = [key for key in keys if key not in there]
        return [missing] if there and missing else [[key] for key in missing]

    def _known(self, keys: Sequence[str]) -> set[str]:
        column = self._slots["slot_key"]
        found: set[str] = set()
        for some in self._adapter.keys.batches(self._slots, keys):
            read = select(column).where(column.in_(some)).distinct()
            found.update(self._adapter.rows.execute(self._session, self._slots, read).scalars())
        return found
