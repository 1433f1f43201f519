"""Assigns tests to processes, when several run in parallel."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.engines import ENGINES

ENGINES_BY_NAME = {case.name: case for case in ENGINES}
LONGEST = (
    "outages",
    "suite",
    "worker",
    "migrations",
    "outbox",
    "locking",
    "prove",
    "dashboard",
    "examples",
    "dialects",
)
"""Folders whose tests take long: the others come last, so that the processes end at about the same time. In each pair,
the tests of the first folder mostly wait, and those of the second mostly compute.
"""


def sort(items: list[pytest.Item]) -> None:
    """Sort tests so that the folders whose tests take longest come first."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    """Return the position of a test's folder, exchanged within its pair for every other engine.

    While the tests of one engine wait, those of another compute.
    """
    folder = _folder(nodeid)
    if folder not in LONGEST:
        return len(LONGEST)
    engines = _engines(nodeid)
    return LONGEST.index(folder) ^ (len(engines) == 1 and list(ENGINES_BY_NAME).index(*engines) % 2)


def _engines(nodeid: str) -> set[str]:
    return ENGINES_BY_NAME.keys() & set(nodeid.partition("[")[2].rstrip("]").split("-"))


def _folder(nodeid: str) -> str:
    return PurePosixPath(nodeid.partition("::")[0]).parent.name


class ByEngine(LoadScopeScheduling):
    """Assigns the tests of one engine in one file, or the remaining tests of a file, to a process. A process starts a
    server of each engine that it gets tests for, keeps it until the end, and gets tests of other engines only when
    there are no more of its own. A database that is given by its URL is used by one process, which gets all tests of
    the engine.

    This replaces ``--dist loadgroup``, whose marks newer versions of pytest do not see.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Prefer an engine whose server the process has started already."""
        used = {scope.partition(" ")[0] for scope in self.assigned_work.get(node, ())} & ENGINES_BY_NAME.keys()
        if preferred := next((scope for scope in self.workqueue if scope.partition(" ")[0] in used), None):
            self.workqueue.move_to_end(preferred, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        engines = _engines(nodeid)
        if len(engines) > 1:
            return "several engines"
        for name in engines:
            return name if ENGINES_BY_NAME[name].given else f"{name} {path}"
        return path
