"""Comparisons with other libraries, each in a virtual environment and a PostgreSQL schema of its own."""
