"""Comparisons with other libraries, each in its own virtual environment and PostgreSQL schema.

``scripts`` has what runs in these environments, one program for each library.
"""
