"""What is to be measured, as the command was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Engine

from ..demo.database import connect
from ..queue.spec import spec_of
from .models import BY_HAND, JOBS, Key


class BenchError(Exception):
    """It cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The table, as somebody sees it who writes SQL by hand."""

    table: str
    index: str
    """Of the available rows, in the order of claims."""
    makes_keys: bool
    """Whether the server makes the keys."""
    columns: tuple[str, ...]
    """What a claim returns: the key, the attempt and what else a handler needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    url: URL
    key: Key
    payload: int
    """Characters."""
    jobs: int
    rounds: int
    processes: tuple[int, ...]
    threads: int
    batch: int

    @property
    def model(self) -> type[Any]:
        return JOBS[self.key]

    @property
    def plain_model(self) -> type[Any]:
        return BY_HAND[self.key]

    @property
    def shape(self) -> Shape:
        return Shape(
            table=self.model.__tablename__,
            index=spec_of(self.model).index_name("claim"),
            makes_keys=self.key is Key.INT,
            columns=("id", "attempt", "payload"),
        )

    @property
    def text(self) -> str:
        return "x" * self.payload

    def engine(self) -> Engine:
        """With as many connections as a worker is advised to have."""
        return connect(self.url, pool_size=self.threads + 5)
