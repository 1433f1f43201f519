"""The time that the server spends on statements, on servers that report it without extensions or settings. It runs from
the arrival of each statement to its response. It includes the server's waits, such as those for its disk, but neither
the network nor the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sqlqueue.dialects import adapter_for

_SOURCES: dict[str, tuple[str, ...]] = {
    # PostgreSQL 15 or newer; all sessions of the database. Sessions report their time at the end of a transaction, but
    # not of every transaction unless forced to
    "postgresql": (
        "SELECT pg_stat_force_next_flush()",
        "SELECT active_time * 1000 FROM pg_stat_database WHERE datname = current_database()",
    ),
    # for accounts that can read performance_schema, such as administrators; only this session
    "mysql": (
        "SELECT sum(sum_timer_wait) / 1000000 FROM performance_schema.events_statements_summary_by_thread_by_event_name"
        " WHERE thread_id = ps_current_thread_id()",
    ),
    # only this session
    "mariadb": (
        "SELECT variable_value * 1000000 FROM information_schema.session_status WHERE variable_name = 'Query_time'",
    ),
}
"""Statements by adapter name, each run in its own transaction; the last returns the microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """The server's time per task, in each part of the work."""

    microseconds: tuple[float, ...]
    """Microseconds per task, for each part."""
    ratio: float
    """Ratio of the last part to the first."""
    ratio_to_least: float
    """Ratio of the last part to the fastest one, since the first may have been disturbed."""

    @classmethod
    def of(cls, readings: Sequence[float | None], tasks: int) -> ServerTime | None:
        """Return the times between ``readings``, each for ``tasks`` tasks; ``None`` if the server reports none."""
        known = [reading for reading in readings if reading is not None]
        if len(known) < len(readings):
            return None
        spent = [(after - before) / tasks for before, after in pairwise(known)]
        if min(spent) <= 0:  # the server does not measure it, such as PostgreSQL without track_activities
            return None
        return cls(
            microseconds=tuple(round(each, 2) for each in spent),
            ratio=round(spent[-1] / spent[0], 3),
            ratio_to_least=round(spent[-1] / min(spent), 3),
        )


def read_server_time(engine: Engine) -> float | None:
    """Return the server's time in microseconds since an arbitrary start; ``None`` if it does not report it.

    On some servers it covers only the session that the pool returns, which must have done all the work.
    """
    reading: Any = None
    try:
        for statement in _SOURCES.get(adapter_for(engine.dialect).name, ()):
            with engine.begin() as connection:
                reading = connection.exec_driver_sql(statement).scalar()
    except DBAPIError:  # this version does not report it, or the account may not read it
        return None
    return None if reading is None else float(reading)
