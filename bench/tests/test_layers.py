"""The sums of samples by layer, of `python -m bench.measurements.layers`."""

from __future__ import annotations

import pytest

from bench.measurements.layers import BENCH, OTHER, layer_of, summed

SITE = "/usr/lib/python3.13/site-packages"


@pytest.mark.parametrize(
    ("frame", "layer"),
    [
        (f"execute ({SITE}/psycopg/cursor.py:97)", "driver"),
        (f"DefaultDialect.do_execute ({SITE}/sqlalchemy/engine/default.py:952)", "driver"),
        (f"Connection.execute ({SITE}/sqlalchemy/engine/base.py:1416)", "SQLAlchemy Core"),
        (f"Session.flush ({SITE}/sqlalchemy/orm/session.py:4000)", "SQLAlchemy ORM"),
        (f"claim ({SITE}/sqlqueue/operations/claiming.py:10)", "sqlqueue: operations"),
        ("close (/src/sqlqueue/sqlqueue/session.py:10)", "sqlqueue: session"),
        ("close (/src/sqlqueue/.venv/lib/site-packages/psycopg_pool/pool.py:10)", "driver"),
        (f"without_session ({BENCH}workloads.py:140)", "handler"),
        ("EpollSelector.select (/usr/lib/python3.13/selectors.py:452)", None),
    ],
)
def test_a_frame_belongs_to_a_layer(frame: str, layer: str | None) -> None:
    assert layer_of(frame) == layer


def test_the_standard_library_counts_for_its_caller() -> None:
    library = "Thread.run (/usr/lib/python3.13/threading.py:1)"
    claim = f"claim ({SITE}/sqlqueue/operations/claiming.py:1)"
    dumps = "dumps (/usr/lib/python3.13/json/__init__.py:1)"
    here = "drain (/src/bench/measurements/layers.py:1)"
    lines = [f"{library};{claim};{dumps} 3", f"{library} 2", f"{here};{claim} 5", " 7", f"{claim} 1"]
    assert summed(lines) == {"sqlqueue: operations": 4, OTHER: 2}
