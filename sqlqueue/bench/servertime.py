"""How long the server itself has been at work, where it tells that without extensions and settings.

It is time that passed from the arrival of a statement to its answer: the server's waits, for its disk too, are in it,
and neither the network nor the client is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ..dialects import adapter_for

_SOURCES: dict[str, tuple[str, ...]] = {
    # PostgreSQL 15 or newer; all sessions of the database.  What a session has spent it reports as it ends a
    # transaction, but not every time, unless it is told to
    "postgresql": (
        "SELECT pg_stat_force_next_flush()",
        "SELECT active_time * 1000 FROM pg_stat_database WHERE datname = current_database()",
    ),
    # who may read performance_schema, as an administrator may; this session alone
    "mysql": (
        "SELECT sum(sum_timer_wait) / 1000000 FROM performance_schema.events_statements_summary_by_thread_by_event_name"
        " WHERE thread_id = ps_current_thread_id()",
    ),
    # this session alone
    "mariadb": (
        "SELECT variable_value * 1000000 FROM information_schema.session_status WHERE variable_name = 'Query_time'",
    ),
}
"""By the name of the adapter: statements, each in a transaction of its own; the last tells the microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """What the server spent on each task, in each of some parts of the work."""

    microseconds: tuple[float, ...]
    """For a task, in each part."""
    ratio: float
    """Of the last part to the first."""
    ratio_to_least: float
    """Of the last part to the one that took least: the first may have had a hiccup."""

    @classmethod
    def of(cls, readings: Sequence[float | None], tasks: int) -> ServerTime | None:
        """Of what was read before the first part and after each, of so many tasks; None if the server did not tell."""
        known = [reading for reading in readings if reading is not None]
        if len(known) < len(readings):
            return None
        spent = [(after - before) / tasks for before, after in pairwise(known)]
        if min(spent) <= 0:  # it counts nothing, as PostgreSQL does without track_activities
            return None
        return cls(
            microseconds=tuple(round(each, 2) for each in spent),
            ratio=round(spent[-1] / spent[0], 3),
            ratio_to_least=round(spent[-1] / min(spent), 3),
        )


def read_server_time(engine: Engine) -> float | None:
    """Microseconds since some moment; None if they are not told.

    It is the session's that the pool gives: no other may have done the work.
    """
    reading: Any = None
    try:
        for statement in _SOURCES.get(adapter_for(engine.dialect).name, ()):
            with engine.begin() as connection:
                reading = connection.exec_driver_sql(statement).scalar()
    except DBAPIError:  # a version that does not know it, or an account that may not read it
        return None
    return None if reading is None else float(reading)
