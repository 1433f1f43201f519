"""Queues divided by topic."""

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
    """A queue divided by ``topic``; claims with ``Task.topic == "..."`` have their own index.

    The default topic is ``"default"``.
    """

    __queue_kind__: ClassVar[Kind | None] = TOPICS

    if TYPE_CHECKING:
        topic: Mapped[str]
        """The topic of the task."""
