"""What a worker reports: log lines, counts, a health page, and OpenTelemetry spans and metrics."""

from ..._support.tracing import HAS_OPENTELEMETRY
from .reports import Reports


def make_reports() -> Reports:
    """Return the reports of a worker, with OpenTelemetry if its API is installed."""
    if not HAS_OPENTELEMETRY:
        return Reports()
    from .telemetry import Telemetry  # noqa: PLC0415

    return Telemetry()
