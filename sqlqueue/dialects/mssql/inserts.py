"""Inserts of text keys, which comparisons pad."""

from __future__ import annotations

from typing import ClassVar

from ..parts.inserts import Inserts


class SQLServerInserts(Inserts):
    """No upsert; comparisons pad texts to the same length."""

    # https://learn.microsoft.com/en-us/sql/t-sql/language-elements/string-comparison-assignment
    drops_blanks: ClassVar[bool] = True
