"""PostgreSQL 12 and newer, and the parts that CockroachDB shares."""

from .adapter import PostgreSQL

__all__ = ["PostgreSQL"]
