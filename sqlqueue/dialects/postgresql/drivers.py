"""The drivers for PostgreSQL that have special features here."""

PSYCOPG = ("psycopg", "psycopg_async")
"""Names of psycopg's dialects in SQLAlchemy, sync and async."""
