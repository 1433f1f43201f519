"""The name of an engine, and its oldest supported version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The names and the minimum version of an engine."""

    dialect: str
    """The name of SQLAlchemy's dialect."""
    name: str
    """The engine's name in messages."""
    minimum: tuple[int, ...]
    """The oldest supported version."""
    needed: str
    """What older versions lack."""
