"""The trace of a task, from its enqueueing to its handler, if OpenTelemetry is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

HAS_OPENTELEMETRY = find_spec("opentelemetry") is not None and find_spec("opentelemetry.propagate") is not None
HEADER = "traceparent"
LONGEST = 55
"""Maximum characters of the header, https://www.w3.org/TR/trace-context/#traceparent-header."""


def present_trace() -> str | None:
    """Return the header of the current trace, or ``None`` if there is none or OpenTelemetry is not installed."""
    if not HAS_OPENTELEMETRY:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)


@contextmanager
def within_trace(header: str | None) -> Iterator[None]:
    """Continue the trace whose header :func:`present_trace` returned in another process."""
    if not HAS_OPENTELEMETRY or header is None:
        yield
        return
    from opentelemetry import context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    token = context.attach(TraceContextTextMapPropagator().extract({HEADER: header}))
    try:
        yield
    finally:
        context.detach(token)
