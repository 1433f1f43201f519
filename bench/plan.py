"""The settings of a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Engine

from sqlqueue.evaluation.support import connect
from sqlqueue.queue.spec import spec_of

from .models import BY_HAND, JOBS, KeyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The facts about the table that SQL written by hand needs."""

    table: str
    index: str
    """The name of the claim index."""
    makes_keys: bool
    """Whether the server generates the keys."""
    columns: tuple[str, ...]
    """The columns that a claim returns: the key, the attempt and whatever else a handler needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of an enqueue or drain measurement."""

    url: URL
    key: KeyKind
    payload: int
    """The length of each job's text, in characters."""
    jobs: int
    rounds: int
    processes: tuple[int, ...]
    threads: int
    batch: int

    @property
    def model(self) -> type[Any]:
        """The model of the jobs."""
        return JOBS[self.key]

    @property
    def plain_model(self) -> type[Any]:
        """The model of the same table without sqlqueue."""
        return BY_HAND[self.key]

    @property
    def shape(self) -> Shape:
        """The facts about the table for SQL written by hand."""
        return Shape(
            table=self.model.__tablename__,
            index=spec_of(self.model).index_name("claim"),
            makes_keys=self.key is KeyKind.INT,
            columns=("id", "attempt", "payload"),
        )

    @property
    def text(self) -> str:
        """The text of each job."""
        return "x" * self.payload

    def engine(self) -> Engine:
        """Return an engine with as many connections as recommended for a worker."""
        return connect(self.url, pool_size=self.threads + 5)
