"""Transactional outboxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.orm import Mapped, Session

from .._support import checks
from ..dialects import json_type, key_type, lasting_keys, text_type
from ..dialects.base import Adapter
from ..lifecycle.kind import Cause, Kind, KindIndex, Reason, SeenTask
from ..model.declaration import LONGEST_KEY, QueueMixin, check_stored_json, optional
from ..queue.options import QueueOptions
from ..queue.retries import ExponentialBackoff
from ..queue.spec import Ordering, QueueSpec
from ..sql import counts_before


class Outbox(Kind):
    """Keeps messages with the same key in order, and never reuses their primary keys."""

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        """Yield the index that finds earlier messages of the same key."""
        columns = [spec["message_key"], spec["finished_at"], *spec.primary_key]
        yield KindIndex("order", columns, spec["finished_at"].is_(None))

    def hindrances(self, adapter: Adapter, session: Session, seen: SeenTask) -> Iterable[Reason]:
        key = seen.values["message_key"]
        return () if key is None else self._earlier(adapter, session, seen, key)

    def _earlier(self, adapter: Adapter, session: Session, seen: SeenTask, key: str) -> Iterator[Reason]:
        spec = seen.spec
        order = [Ordering(column) for column in spec.primary_key]
        unfinished = (spec["message_key"] == key, spec["finished_at"].is_(None))
        ahead = sum(adapter.rows.execute(session, spec, counts_before(spec, order, seen.columns, *unfinished)).one())
        if ahead:
            text = f"{ahead:,} earlier messages with its key {key!r} are not published yet"
            yield Reason(cause=Cause.KEY_ORDER, text=text, ahead=ahead)

    def mapped(self, spec: QueueSpec) -> None:
        """Prevent the engine from reusing primary keys: consumers recognize a repeated message by its key."""
        if len(spec.primary_key) == 1:
            spec.table.dialect_kwargs.update(lasting_keys())


OUTBOX = Outbox(
    columns={
        "message_key": lambda _: optional(key_type(LONGEST_KEY)),
        "destination": lambda _: optional(text_type(LONGEST_KEY)),
        "payload": lambda _: optional(json_type()),
        "headers": lambda _: optional(json_type()),
    },
    checks={
        "message_key": checks.key,
        "destination": checks.text,
        "payload": check_stored_json,
        "headers": check_stored_json,
    },
    untouched=("message_key", "destination", "payload", "headers"),
)


class OutboxMixin(QueueMixin):
    """A transactional outbox: each row is a message, stored in the same transaction as the data that it is about.

    A :class:`.Relay` publishes messages with the same ``message_key`` in the order of their primary keys.  This is the
    order of their transactions if transactions that concern the same key wait for each other, for example because they
    update the same row.

    A message is retried until it is published, and then deleted.  Base the model's own ``QueueOptions`` on these:
    ``__queue__ = replace(OutboxMixin.__queue__, on_complete="keep")``.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(
        lease=timedelta(seconds=30),
        max_attempts=1_000_000,
        retry=ExponentialBackoff(timedelta(seconds=1), factor=2, cap=timedelta(minutes=1)),
        on_complete="delete",
    )
    __queue_kind__: ClassVar[Kind | None] = OUTBOX

    if TYPE_CHECKING:
        message_key: Mapped[str | None]
        """The key whose messages stay in order, such as the primary key of the row that they are about; ``None`` for no
        order."""
        destination: Mapped[str | None]
        """The topic, exchange or routing key to publish to, for the publisher to read."""
        payload: Mapped[Any]
        """The payload, as JSON."""
        headers: Mapped[dict[str, Any] | None]
        """Headers sent with the payload, as JSON."""
