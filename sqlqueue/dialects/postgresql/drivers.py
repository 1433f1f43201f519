"""The drivers for PostgreSQL that have features of their own here."""

PSYCOPG = ("psycopg", "psycopg_async")
"""Names of psycopg's dialects in SQLAlchemy, sync and async."""
