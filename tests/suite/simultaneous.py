"""Concurrent calls of many sessions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError

from sqlqueue.dialects import adapter_for
from tests.support.harness import Actor, Database
from tests.support.rows import contenders

THREADS = 8

T = TypeVar("T")
Transaction: TypeAlias = Callable[[Callable[[Actor], T]], T]
"""Calls and commits, repeats this after a deadlock, and returns the result."""


def simultaneously(db: Database, *parts: Callable[[Transaction[Any]], object]) -> int:
    """Run all `parts` at once, and return the number of deadlock victims."""
    barrier, victims = Barrier(len(parts)), []
    adapter = adapter_for(db.session_engine.dialect)

    def run(part: Callable[[Transaction[Any]], object], actor: Actor) -> None:
        def transaction(call: Callable[[Actor], Any]) -> Any:
            while True:
                try:
                    result = call(actor)
                    actor.commit()
                except DBAPIError as error:
                    actor.rollback()
                    if not adapter.connections.is_transient(error):
                        raise
                    victims.append(error)
                else:
                    return result

        barrier.wait(10)
        part(transaction)

    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(run, parts, contenders(db, len(parts))))
    return len(victims)
