"""SQLite 3.35 and newer."""

from .adapter import SQLite

__all__ = ["SQLite"]
