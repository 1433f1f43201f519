"""What an engine is called, and how new it has to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """An engine, as people and SQLAlchemy know it."""

    dialect: str
    """The name of SQLAlchemy's dialect."""
    name: str
    """The engine's own name, for people."""
    minimum: tuple[int, ...]
    """The oldest version that can carry a queue."""
    needed: str
    """What the minimum is about."""
