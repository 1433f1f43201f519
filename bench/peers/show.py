"""The figures of other libraries as text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..figures import Spread
from .figures import PeerFigure
from .measure import PeerReport


def show_peers(console: Console, report: PeerReport) -> None:
    """Print ``report`` as a table."""
    processes = sorted({count for each in report.figures for count in each.jobs_per_second})
    table = Table(title="Other libraries", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    rates = [(f"jobs/s\n{count} process{'es' if count > 1 else ''}", "÷ psycopg\nby hand") for count in processes]
    for name in (
        *chain(*rates),
        "CPU ms\n/1,000",
        "enqueue\np50 ms",
        "commit to\nhandler p50",
        "p99",
        "call to\nhandler p50",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for figure in report.figures:
        table.add_row(*_cells(figure, processes))
    console.print(table)
    for name, reason in report.missing.items():
        console.print(f"{name} was not measured: {escape(reason)}")


def _cells(figure: PeerFigure, processes: list[int]) -> list[str]:
    pickup = figure.pickup
    delays = (pickup.p50, pickup.p99, pickup.from_call_p50) if pickup else (None, None, None)
    return [
        f"{figure.name} {figure.version}",
        *chain(*((_median(figure.jobs_per_second, n, ",.0f"), _median(figure.ratios, n, ".2f")) for n in processes)),
        "" if figure.cpu_ms_per_1000 is None else f"{figure.cpu_ms_per_1000:,.0f}",
        *("" if value is None else f"{value:.1f}" for value in (figure.enqueue_p50, *delays)),
    ]


def _median(spreads: Mapping[int, Spread], processes: int, form: str) -> str:
    return format(spreads[processes].median, form) if processes in spreads else ""
