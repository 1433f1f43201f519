"""Index hints for rows that are named by primary key."""

from __future__ import annotations

from abc import abstractmethod

from sqlalchemy import Delete, Select
from sqlalchemy.dialects import mysql

from ...queue.spec import QueueSpec
from ..naming import Naming
from ..parts.keys import ByKey, Keys

_QUOTE = mysql.dialect().identifier_preparer.quote


class HintedKeys(Keys):
    """Rows by primary key, and by no other index."""

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # left alone, the optimizer reads all of a small table, and waits for what others have locked in it
        if isinstance(statement, Delete):
            return self.deleting(spec, statement)
        return force_index(statement, spec, "PRIMARY")

    @abstractmethod
    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        """Return :meth:`by_key` of a DELETE."""


class MySQLKeys(HintedKeys):
    """With an optimizer hint for DELETE."""

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        # the syntax of DELETE has no place for index hints, but for this one
        return statement.prefix_with(Naming("/*+ INDEX({} PRIMARY) */", spec.table, qualified=False))


def force_index(statement: ByKey, spec: QueueSpec, index: str) -> ByKey:
    hint = f"FORCE INDEX ({_QUOTE(index)})"
    if isinstance(statement, Select):
        return statement.with_hint(spec.table, hint)
    return statement.with_hint(hint)
