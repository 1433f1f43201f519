"""Queues that are divided by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sqlalchemy.orm import Mapped

from .._support import checks
from ..dialects import key_type
from ..lifecycle.kind import Kind, Partition
from ..model.mixins import QueueMixin

LONGEST_TOPIC = 128


TOPICS = Kind(
    columns={
        "topic": lambda _: {"type_": key_type(LONGEST_TOPIC), "server_default": "default", "nullable": False},
    },
    checks={"topic": checks.key},
    untouched=("topic",),
    partition=Partition("topic", width=4),
)


class TopicMixin(QueueMixin):
    """A queue divided by ``topic``; a claim with ``Task.topic == "..."`` has an index of its own.

    A row with nothing given is of the topic ``"default"``.
    """

    __queue_kind__: ClassVar[Kind | None] = TOPICS

    if TYPE_CHECKING:
        topic: Mapped[str]
