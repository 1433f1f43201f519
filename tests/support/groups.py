"""Assigns tests to processes, when several run in parallel."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.engines import ENGINES

ENGINES_BY_NAME = {case.name: case for case in ENGINES}
LONGEST = ("outages", "worker", "suite", "prove", "dashboard", "examples", "demo", "locking", "outbox", "dialects")
"""Folders whose tests take long: the others come last, so that the processes end at about the same time."""


def sort(items: list[pytest.Item]) -> None:
    """Sort tests so that the folders whose tests take longest come first."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    folder = _folder(nodeid)
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)


def _folder(nodeid: str) -> str:
    return PurePosixPath(nodeid.partition("::")[0]).parent.name


class ByEngine(LoadScopeScheduling):
    """Assigns the tests of one engine in one folder, or the remaining tests of one file, to a process. A process starts
    a server of each engine that it gets tests for, and keeps it until the end. A database that is given by its URL is
    used by one process, which gets all tests of the engine.

    This replaces ``--dist loadgroup``, whose marks newer versions of pytest do not see.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Prefer an engine whose server the process has started already."""
        used = {scope.partition(" ")[0] for scope in self.assigned_work.get(node, ())} & ENGINES_BY_NAME.keys()
        if preferred := next((scope for scope in self.workqueue if scope.partition(" ")[0] in used), None):
            self.workqueue.move_to_end(preferred, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if path == "tests/outages/test_faults.py":
            return "faults"  # starts servers of all engines at once
        engines = ENGINES_BY_NAME.keys() & set(test.partition("[")[2].rstrip("]").split("-"))
        if len(engines) > 1:
            return "several engines"
        for name in engines:
            return name if ENGINES_BY_NAME[name].given else f"{name} {_folder(nodeid)}"
        return path
