"""Selects rows by primary key on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...queue.spec import Criterion, Identity, QueueSpec
from ..parts.keys import Keys


class SQLiteKeys(Keys):
    """Avoids lists of tuples, which do not use an index, and expressions more than 1,000 levels deep."""

    tuples: ClassVar[bool] = False
    batch: ClassVar[int] = 500

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(spec.primary_key) > 1 and len(keys) > self.most(spec):
            return self.rows_in(spec, spec.primary_key, keys)  # more ORs would exceed the expression depth
        return super().key_in(spec, keys)
