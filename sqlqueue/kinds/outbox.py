"""Transactional outboxes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Unicode
from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import json_type, key_type, lasting_keys
from ..lifecycle.kind import Kind, KindIndex
from ..model.columns import LONGEST_KEY, check_stored_json, optional
from ..model.mixins import QueueMixin
from ..queue.options import QueueOptions
from ..queue.retries import ExponentialBackoff
from ..queue.spec import QueueSpec


class Outbox(Kind):
    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        """What comes before a message of the same key is found by an index."""
        columns = [spec["message_key"], spec["finished_at"], *spec.primary_key]
        yield KindIndex("order", columns, spec["finished_at"].is_(None))

    def mapped(self, spec: QueueSpec) -> None:
        """Who has had a message knows it by its key, which is given out once."""
        if len(spec.primary_key) == 1:
            spec.table.dialect_kwargs.update(lasting_keys())


OUTBOX = Outbox(
    columns={
        "message_key": lambda _: optional(key_type(LONGEST_KEY)),
        "destination": lambda _: optional(Unicode(LONGEST_KEY)),
        "payload": lambda _: optional(json_type()),
        "headers": lambda _: optional(json_type()),
    },
    checks={
        "message_key": checks.key,
        "destination": checks.text,
        "payload": check_stored_json,
        "headers": check_stored_json,
    },
)


class OutboxMixin(QueueMixin):
    """A transactional outbox: each row is a message, stored in the transaction of the data that it is about.

    A :class:`.Relay` publishes messages with the same ``message_key`` in the order of their primary keys, which is that
    of their transactions where those that write about the same thing wait for each other, as by updating its row.

    A message is tried again until it is published, and is deleted then; ``QueueOptions`` of the model's own should
    start from these: ``__queue__ = replace(OutboxMixin.__queue__, on_complete="keep")``.
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
        """What has to keep its order, such as the key of the row that the message is about; ``None``: no order."""
        destination: Mapped[str | None]
        """Where it is to go: a topic, an exchange, a routing key.  For the publisher to read."""
        payload: Mapped[Any]
        """JSON."""
        headers: Mapped[dict[str, Any] | None]
        """What goes along with the payload, as JSON."""
