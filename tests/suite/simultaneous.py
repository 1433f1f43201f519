"""Concurrent calls of many sessions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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


def concurrently(db: Database, *parts: Callable[[Actor], T]) -> list[T]:
    """Call all `parts` at once, each with a session of its own, and return their results."""
    barrier = Barrier(len(parts))

    def run(part: Callable[[Actor], T], actor: Actor) -> T:
        barrier.wait(10)
        return part(actor)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(run, parts, contenders(db, len(parts))))


def race(db: Database, call: Callable[[Actor, int], Any]) -> list[Any]:
    """Call it in eight transactions at once; return the result or the exception of each."""

    def run(number: int, actor: Actor) -> Any:
        try:
            result = call(actor, number)
            actor.commit()
        except Exception as error:
            actor.rollback()
            return error
        return result

    return concurrently(db, *(partial(run, number) for number in range(1, THREADS + 1)))


def simultaneously(db: Database, *parts: Callable[[Transaction[Any]], object]) -> int:
    """Run all `parts` at once, and return the number of deadlock victims."""
    victims: list[DBAPIError] = []
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

        part(transaction)

    concurrently(db, *(partial(run, part) for part in parts))
    return len(victims)
