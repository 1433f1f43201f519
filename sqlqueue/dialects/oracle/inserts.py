"""Inserts without generated keys by default."""

from __future__ import annotations

from typing import ClassVar

from ..parts.inserts import Inserts


class OracleInserts(Inserts):
    """Generates keys only if the model declares how; has no upsert."""

    numbers_keys: ClassVar[bool] = False
