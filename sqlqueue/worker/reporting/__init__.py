"""The reports of a worker: log lines, counts, a health page, metrics for Prometheus, and OpenTelemetry.

The other parts of a worker call :class:`.Reports`; nothing here changes what a worker does.
"""

from importlib.util import find_spec

from ..._support.tracing import HAS_OPENTELEMETRY
from .reports import Reports

HAS_PROMETHEUS = find_spec("prometheus_client") is not None


def make_reports() -> Reports:
    """Return the reports of a worker: with OpenTelemetry and for Prometheus, if these are installed."""
    kinds: list[type[Reports]] = []
    if HAS_PROMETHEUS:
        from .metrics import PrometheusReports  # noqa: PLC0415

        kinds.append(PrometheusReports)
    if HAS_OPENTELEMETRY:
        from .telemetry import Telemetry  # noqa: PLC0415

        kinds.append(Telemetry)
    made: Reports = type("WorkerReports", tuple(kinds or [Reports]), {})()
    return made
