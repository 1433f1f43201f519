"""Which tests share a process, where several run them side by side: a server starts, and its tables are made, once."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.engines import SELECTED

NAMES = frozenset(case.name for case in SELECTED)


class ByEngine(LoadScopeScheduling):
    """Instead of ``--dist loadgroup``, whose marks newer versions of pytest do not see.

    All that is not about one engine is in one process, which comes to its tests about time, too, with all others: the
    outages, whose own servers start together, take as long as those of an engine.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        engines = NAMES.intersection(test.partition("[")[2].rstrip("]").split("-"))
        return "others" if len(engines) != 1 or path.startswith("tests/outages/") else next(iter(engines))
