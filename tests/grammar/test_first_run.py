"""What the experiments of the first run ask a server matches the grammar of its language.

The statements that switch optimized locking on and off are newer than the grammar.
"""

from __future__ import annotations

import pytest

from tests.first_run.views import VIEWS
from tests.grammar import ParserMissingError
from tests.grammar.test_grammar import CHECKS, unavailable

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("engine", VIEWS)
def test_query_is_accepted(engine: str) -> None:
    views = VIEWS[engine]
    queries = {"locks": views.locks, "waits": views.waits, "plan": views.plan}
    if views.optimized:
        queries["optimized"] = views.optimized
    try:
        verdicts = CHECKS[engine](queries)
    except ParserMissingError as missing:
        unavailable(str(missing))
    assert {name: errors for name, errors in verdicts.items() if errors} == {}
