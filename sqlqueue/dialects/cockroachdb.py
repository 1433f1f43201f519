"""CockroachDB, for those who outgrow one machine.  Never run on a real server by this project."""

from __future__ import annotations

from typing import ClassVar

from .postgresql import PostgreSQL


class CockroachDB(PostgreSQL):
    """Speaks PostgreSQL's language, claim included.  At SERIALIZABLE, its default, it retries what it can by itself."""

    name = "cockroachdb"
    product = "CockroachDB"
    minimum: ClassVar[tuple[int, ...]] = (22, 2)
    needed = "SKIP LOCKED"
    # its dialect reads the options of PostgreSQL's
    partial_index: ClassVar[str | None] = None
    harmless_levels = ("READ COMMITTED", "SERIALIZABLE")
