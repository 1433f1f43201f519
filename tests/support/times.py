"""Lists what took the processor's time: the folders, and the dearest tests with all their cases."""

from __future__ import annotations

import heapq
import resource
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import PurePosixPath

import pytest

DEAREST = 40


def spent() -> float:
    """Return the seconds of CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def list_times(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times that the reports of teardowns contain; servers in containers are not included."""
    folders: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, float] = defaultdict(float)
    cases: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            noted = dict(getattr(report, "user_properties", ()))
            if "cpu" in noted and report.when == "teardown":
                name = report.nodeid.partition("[")[0]
                folder = str(PurePosixPath(name.partition("::")[0]).parent)
                folders[folder] += noted["cpu"]
                tests[name] += noted["cpu"]
                cases.update((folder, name))
    terminalreporter.write_sep("=", f"seconds of CPU time: {sum(folders.values()):.0f}")
    for found, number in ((folders, len(folders)), (tests, DEAREST)):
        for name, seconds in heapq.nlargest(number, found.items(), key=itemgetter(1)):
            terminalreporter.write_line(f"{seconds:8.1f}  {cases[name]:5} cases  {name}")
