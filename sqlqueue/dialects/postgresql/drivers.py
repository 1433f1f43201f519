"""The drivers for PostgreSQL whose special features are used."""

PSYCOPG = ("psycopg", "psycopg_async")
"""Names of psycopg's dialects in SQLAlchemy, sync and async."""
