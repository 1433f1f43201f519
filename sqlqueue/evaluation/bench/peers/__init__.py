"""Comparisons with other libraries, each in its own virtual environment and PostgreSQL schema."""
