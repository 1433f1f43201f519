"""The figures of other libraries as text."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .measure import PeerFigure, PeerReport


def show_peers(console: Console, report: PeerReport) -> None:
    """Print ``report`` as a table."""
    processes = sorted({count for each in report.figures for count in each.jobs_per_second})
    table = Table(title="Other libraries", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    rates = [f"jobs/s\n{count} process{'es' if count > 1 else ''}" for count in processes]
    for name in (*rates, "CPU ms\n/1,000", "enqueue\np50 ms", "commit to\nhandler p50", "p99", "call to\nhandler p50"):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in report.figures:
        table.add_row(*_cells(figure, processes))
    console.print(table)
    for who, reason in report.missing.items():
        console.print(f"{who} was not measured: {escape(reason)}")


def _cells(figure: PeerFigure, processes: list[int]) -> list[str]:
    rates = [figure.jobs_per_second.get(count) for count in processes]
    pickup = figure.pickup
    delays = (pickup.p50, pickup.p99, pickup.from_call_p50) if pickup else (None, None, None)
    return [
        f"{figure.who} {figure.version}",
        *("" if rate is None else f"{rate.median:,.0f} ({rate.least:,.0f}-{rate.most:,.0f})" for rate in rates),
        "" if figure.cpu_ms_per_1000 is None else f"{figure.cpu_ms_per_1000:,.0f}",
        *("" if value is None else f"{value:.1f}" for value in (figure.enqueue_p50, *delays)),
    ]
