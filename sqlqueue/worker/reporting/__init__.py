"""What a worker says of itself: log lines, counts, its health page, and OpenTelemetry's spans and metrics."""

from ..._support.tracing import HAS_OPENTELEMETRY
from .reports import Reports


def make_reports() -> Reports:
    """With OpenTelemetry where its API is installed."""
    if not HAS_OPENTELEMETRY:
        return Reports()
    from .telemetry import Telemetry  # noqa: PLC0415

    return Telemetry()
