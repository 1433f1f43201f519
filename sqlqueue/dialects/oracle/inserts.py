"""Keys that a model has to declare."""

from __future__ import annotations

from typing import ClassVar

from ..parts.inserts import Inserts


class OracleInserts(Inserts):
    """No key without a word of the model, and no upsert."""

    numbers_keys: ClassVar[bool] = False
