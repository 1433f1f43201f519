"""Which tests share a process, where several run them side by side: a server starts, and its tables are made, once."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.support.engines import ENGINES

NAMES = frozenset(case.name for case in ENGINES)


class ByEngine(LoadScopeScheduling):
    """Instead of ``--dist loadgroup``, whose marks newer versions of pytest do not see."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if path == "tests/outages/test_faults.py":
            return "outages"  # their own servers start together, all of them
        engines = NAMES.intersection(test.partition("[")[2].rstrip("]").split("-"))
        if len(engines) > 1:
            return "several engines"
        return next(iter(engines), path)
