"""Query plans on SQLite."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select

from ..parts.plans import Plans, QueryPlan, explain


class SQLitePlans(Plans):
    """Plans from EXPLAIN QUERY PLAN."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if forced:
            return None
        steps = explain(connection, "EXPLAIN QUERY PLAN", statement).scalars("detail").all()
        used = (step.partition(" INDEX ")[2].partition(" ")[0] for step in steps)
        return QueryPlan(indexes=frozenset(filter(None, used)), sorted=sum("TEMP B-TREE" in step for step in steps))
