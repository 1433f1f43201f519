"""The trace that a task belongs to, from where it is enqueued to where it is handled, if OpenTelemetry is installed."""

from __future__ import annotations

from importlib.util import find_spec

HAS_OPENTELEMETRY = find_spec("opentelemetry") is not None and find_spec("opentelemetry.propagate") is not None
HEADER = "traceparent"
LONGEST = 55
"""Characters of such a header, https://www.w3.org/TR/trace-context/#traceparent-header."""


def present_trace() -> str | None:
    """The header that tells the present trace, if there is one."""
    if not HAS_OPENTELEMETRY:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)
