"""The report as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .figures import BASELINE_KINDS, Figure, Spread
from .growth import HeldSnapshot
from .keyed import Keyed
from .peers.show import show_peers
from .pickup import Delays, Pickup
from .roundtrips import RoundTrips
from .run import BenchReport, Grown


def show(console: Console, report: BenchReport) -> None:
    """Print ``report`` as tables."""
    _show_facts(console, report.machine)
    if report.wanted.delay:
        console.print(f"A proxy adds {report.wanted.delay:g} ms of latency in each direction.")
    if report.baseline is None and (report.enqueue or report.drain):
        console.print("There is no hand-written baseline for this driver, so nothing is compared.")
    if report.enqueue is not None:
        _show_contest(console, "Enqueue", report.enqueue)
    if report.drain is not None:
        _show_contest(console, "Drain", report.drain)
    if report.pickup is not None:
        _show_pickup(console, report.pickup)
    if report.roundtrips is not None:
        _show_round_trips(console, report.roundtrips)
    if report.growth is not None:
        _show_growth(console, report.growth)
    if report.keyed is not None:
        _show_keyed(console, report.keyed)
    if report.peers is not None:
        show_peers(console, report.peers)


def _show_facts(console: Console, facts: dict[str, Any]) -> None:
    console.print(
        f"{facts['engine']}, {facts['driver']}, {facts['cpus']} CPUs; Python {facts['python']},"
        f" SQLAlchemy {facts['sqlalchemy']}, sqlqueue {facts['sqlqueue']}"
    )


def _show_contest(console: Console, title: str, figures: Sequence[Figure]) -> None:
    """Print jobs per second with the minimum and maximum of all rounds, and the ratios to the baselines."""
    for processes, several in groupby(figures, key=lambda figure: figure.processes):
        named = title if processes == 1 else f"{title}, {processes} processes"
        table = Table(title=named, title_justify="left", box=SIMPLE_HEAD)
        for name in ("", "jobs/s", "÷ driver", "÷ ORM", "CPU ms\n/1,000", "statements\n/job", "commits\n/job"):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for form, group in groupby(several, key=lambda figure: figure.form):
            table.add_section()
            table.add_row(f"[b]{form}")
            for figure in group:
                table.add_row(*_contest_cells(figure))
        console.print(table)


def _contest_cells(figure: Figure) -> list[str]:
    rate = figure.jobs_per_second
    return [
        f"  {figure.name}",
        f"{rate.median:,.0f} ({rate.least:,.0f}-{rate.most:,.0f})",
        *(_ratio(figure.ratios.get(kind)) for kind in BASELINE_KINDS),
        f"{figure.cpu_ms_per_1000:,.0f}",
        f"{figure.statements_per_job:.2f}",
        f"{figure.commits_per_job:.2f}",
    ]


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{spread.median:.2f} ({spread.least:.2f}-{spread.most:.2f})"


def _show_pickup(console: Console, figures: Sequence[Pickup]) -> None:
    table = Table("milliseconds", "tasks", "p50", "p95", "p99", "most", title="Pick-up", title_justify="left")
    for figure in figures:
        how = "notified" if figure.notified else "by polling"
        table.add_row(f"from the commit to the handler, {how}", *_delay_cells(figure.enqueued))
        if figure.by_hand is not None:
            table.add_row("the same by hand, with the driver alone", *_delay_cells(figure.by_hand))
        table.add_row(f"from the scheduled time to the handler, {how}", *_delay_cells(figure.scheduled))
    console.print(table)
    for figure in figures:
        how = "that listens" if figure.notified else "that polls"
        console.print(f"An idle worker {how} sends {figure.idle_statements:.2f} statements per second.")


def _delay_cells(delays: Delays) -> list[str]:
    return [str(delays.count), *(f"{value:.1f}" for value in (delays.p50, delays.p95, delays.p99, delays.most))]


def _show_round_trips(console: Console, figures: Sequence[RoundTrips]) -> None:
    table = Table(
        "",
        "round trips",
        "statements",
        "ms",
        title="Round trips, with 1 ms or more of latency in each direction",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for operation, group in groupby(sorted(figures, key=lambda each: each.operation), lambda each: each.operation):
        table.add_section()
        table.add_row(f"[b]{operation}")
        for figure in group:
            cells = (figure.round_trips, figure.statements, figure.milliseconds)
            table.add_row(f"  {figure.name}", *("" if each is None else f"{each:.2f}" for each in cells))
    console.print(table)


def _show_growth(console: Console, grown: Grown) -> None:
    columns = ("finished tasks", "jobs/s", "relative to the first", "server microseconds/job")
    table = Table(*columns, title="Growth", title_justify="left")
    for figure in grown.amid:
        rate, ratio = figure.rate, figure.ratio
        table.add_row(
            f"{figure.rows:,}",
            f"{rate.median:,.0f} ({rate.least:,.0f}-{rate.most:,.0f})",
            f"{ratio.median:.2f} ({ratio.least:.2f}-{ratio.most:.2f})",
            "" if figure.server_microseconds is None else f"{figure.server_microseconds:,.1f}",
        )
    console.print(table)
    _show_snapshot(console, grown.under_snapshot)


def _show_keyed(console: Console, figures: Sequence[Keyed]) -> None:
    table = Table("queue", "jobs/s", "ratio", "to", title="Keys", title_justify="left")
    for figure in figures:
        rate, ratio = figure.rate, figure.ratio
        table.add_row(
            figure.name,
            f"{rate.median:,.0f} ({rate.least:,.0f}-{rate.most:,.0f})",
            f"{ratio.median:.2f} ({ratio.least:.2f}-{ratio.most:.2f})",
            figure.against,
        )
    console.print(table)


def _show_snapshot(console: Console, held: HeldSnapshot) -> None:
    console.print(
        "While another transaction holds its snapshot, the last tenth of a drain runs at"
        f" {held.ratio:.2f} times the speed of the first."
    )
    if held.server is None:
        console.print("This server does not report how long it spends on statements.")
        return
    first, *_, last = held.server.microseconds
    console.print(
        f"The server itself spent {first:,.1f} microseconds per task in the first tenth, {last:,.1f} in the last:"
        f" {held.server.ratio:.2f} times as long, and {held.server.ratio_to_least:.2f} times as long as in the fastest."
    )
