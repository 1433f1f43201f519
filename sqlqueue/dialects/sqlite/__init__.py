"""SQLite 3.35 and newer.  One module for each part of an adapter that differs from the standard."""

from .adapter import SQLite

__all__ = ["SQLite"]
