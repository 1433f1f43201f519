"""Queues whose tasks carry a trace (OpenTelemetry)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import String
from sqlalchemy.orm import Mapped

from .._support import checks
from .._support.tracing import LONGEST, present_trace
from ..lifecycle.kind import Kind
from ..model.columns import optional
from ..model.mixins import QueueMixin

TRACES = Kind(
    columns={"trace_context": lambda _: optional(String(LONGEST)) | {"insert_default": present_trace}},
    checks={"trace_context": checks.text},
    untouched=("trace_context",),
)


class TraceMixin(QueueMixin):
    """A queue whose tasks carry the trace in which they were enqueued to where they are handled (OpenTelemetry)."""

    __queue_kind__: ClassVar[Kind | None] = TRACES

    if TYPE_CHECKING:
        trace_context: Mapped[str | None]
        """A W3C ``traceparent`` header."""
