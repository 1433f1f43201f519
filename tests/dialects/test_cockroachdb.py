"""Plans of CockroachDB, which this project cannot run: the EXPLAIN output comes from its documentation."""

from __future__ import annotations

import pytest

from sqlqueue.dialects.cockroachdb import plan_of
from sqlqueue.dialects.inspection import QueryPlan

IN_ORDER = """
distribution: local
vectorized: true

• limit
│ count: 1
│
└── • index join
    │ table: email@email_pkey
    │ locking strength: for no key update
    │ locking wait policy: skip locked
    │
    └── • scan
          table: email@ix_email_ready
          spans: [/'available' - /'available']
          locking wait policy: skip locked
"""
SORTED = """
distribution: local
vectorized: true

• top-k
│ order: +priority,+available_at,+id
│ k: 1
│
└── • filter
    │ filter: status = 'available'
    │
    └── • scan
          estimated row count: 2 (100% of the table; stats collected 3 seconds ago)
          table: email@email_pkey
          spans: FULL SCAN
          locking strength: for update
          locking wait policy: skip locked
"""


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        pytest.param(IN_ORDER, QueryPlan(indexes=frozenset({"email_pkey", "ix_email_ready"}), sorted=0), id="in order"),
        pytest.param(SORTED, QueryPlan(indexes=frozenset({"email_pkey"}), sorted=1), id="sorted"),
        pytest.param(
            SORTED.replace("top-k", "sort"), QueryPlan(indexes=frozenset({"email_pkey"}), sorted=1), id="no limit"
        ),
    ],
)
def test_a_plan_is_read(text: str, plan: QueryPlan) -> None:
    assert plan_of(text.splitlines()) == plan
