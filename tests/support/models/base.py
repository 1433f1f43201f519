"""The declarative bases of the tests' models, which share their metadata."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass


class Base(DeclarativeBase):
    pass


class DataBase(MappedAsDataclass, DeclarativeBase):
    """A base whose models are dataclasses, in the same database."""

    metadata = Base.metadata
