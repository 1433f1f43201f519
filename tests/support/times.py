"""Lists what took the processor's time: the folders, and the dearest tests with all their cases."""

from __future__ import annotations

import heapq
import resource
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

DEAREST = 40


def spent() -> float:
    """Return the seconds of CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def list_times(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times that the reports of teardowns contain; servers in containers are not included."""
    folders, tests = defaultdict[str, Times](Times), defaultdict[str, Times](Times)
    for reports in terminalreporter.stats.values():
        for report in reports:
            noted = dict(getattr(report, "user_properties", ()))
            if "cpu" in noted and report.when == "teardown":
                name = report.nodeid.partition("[")[0]
                for times in (folders[str(PurePosixPath(name.partition("::")[0]).parent)], tests[name]):
                    times.add(noted["cpu"], noted["elapsed"])
    terminalreporter.write_sep("=", f"seconds of CPU time: {sum(each.cpu for each in folders.values()):.0f}")
    terminalreporter.write_line("     CPU  elapsed")
    for found, number in ((folders, len(folders)), (tests, DEAREST)):
        for name, times in heapq.nlargest(number, found.items(), key=lambda item: item[1].cpu):
            terminalreporter.write_line(f"{times.cpu:8.1f} {times.elapsed:8.1f}  {times.cases:5} cases  {name}")


@dataclass(slots=True)
class Times:
    """Seconds."""

    cpu: float = 0
    elapsed: float = 0
    cases: int = 0

    def add(self, cpu: float, elapsed: float) -> None:
        self.cpu += cpu
        self.elapsed += elapsed
        self.cases += 1
