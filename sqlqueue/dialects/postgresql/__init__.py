"""PostgreSQL 12 and newer, and what CockroachDB has in common with it."""

from .adapter import PostgreSQL

__all__ = ["PostgreSQL"]
