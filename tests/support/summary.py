"""The table at the end of each run: the engines that the tests ran on, their versions, and why others were left out."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.engines import ABSENT, ENGINES, EngineCase

HEADER = ("engine", "passed", "failed", "skipped", "sync driver", "async driver", "server")
KINDS = {"passed": "passed", "failed": "failed", "error": "failed", "skipped": "skipped"}


def sum_up(terminalreporter: pytest.TerminalReporter) -> set[str]:
    """Print the table, and return the names of the engines that the tests used."""
    outcomes: Counter[tuple[str, str]] = Counter()
    servers: dict[str, str] = {}
    for kind, reports in terminalreporter.stats.items():
        for report in reports:
            # Values recorded by a fixture are part of the report, also from xdist's worker processes.
            noted = dict(getattr(report, "user_properties", ()))
            if "engine" in noted and kind in KINDS:
                outcomes[noted["engine"], KINDS[kind]] += 1
                servers[noted["engine"]] = noted["server"]
    if servers:
        terminalreporter.write_sep("=", "engines")
        for line in _aligned([HEADER, *(_row(case, servers, outcomes) for case in ENGINES)]):
            terminalreporter.write_line(line)
    return set(servers)


def _row(case: EngineCase, servers: dict[str, str], outcomes: Counter[tuple[str, str]]) -> tuple[str, ...]:
    absent = ABSENT.get(case.name, "no test of this run")
    counts = (str(outcomes[case.name, kind]) for kind in ("passed", "failed", "skipped"))
    return (case.name, *counts, case.sync_driver, case.async_driver, servers.get(case.name, absent))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
