"""Locks on SQLite, where the only lock is that of the writer."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Integer, Select

from ...sql.selection import Pick
from ..parts.locking import Locking


class SQLiteLocking(Locking):
    """No row locks: there is one writer."""

    one_writer: ClassVar[bool] = True
    passes_over: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        key = pick.spec.primary_key
        # primary key columns can be NULL unless declared otherwise, and such a row cannot be selected by its key
        named = () if len(key) == 1 and isinstance(key[0].type, Integer) else (part.is_not(None) for part in key)
        return pick.select(*columns).where(*named).limit(pick.limit)
