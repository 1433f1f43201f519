"""All drivers of each engine, on the engine's server."""

from __future__ import annotations

import asyncio
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from tests.outages.blackhole import BlackHole, through
from tests.support.engines import SELECTED, EngineCase
from tests.support.harness import Database

Function = Callable[..., Any]


def _needs(driver: str) -> list[pytest.MarkDecorator]:
    """Return a mark that skips tests if this driver, given as `engine+driver`, is missing, unless all are required."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mariadb has invalid escape sequences
            URL.create(driver).get_dialect().import_dbapi()
    except ImportError as error:
        if os.environ.get("SQLQUEUE_REQUIRE_DRIVERS") != "1":
            return [pytest.mark.skip(reason=f"no driver {driver}: {error}")]
    return []


def _each(drivers: Callable[[EngineCase], Iterable[str]]) -> pytest.MarkDecorator:
    given = [
        pytest.param((case, "sync"), name := f"{case.name}+{driver}", id=f"{case.name}-{driver}", marks=_needs(name))
        for case in SELECTED
        for driver in drivers(case)
    ]
    return pytest.mark.parametrize(("sync_db", "driver"), given, indirect=["sync_db"])


on_other_drivers = _each(lambda case: case.other_drivers)
on_network_drivers = _each(
    lambda case: (case.sync_driver.partition("+")[2], *case.other_drivers) if case.container else ()
)


@contextmanager
def engine_with(driver: str, database: Database) -> Iterator[Engine]:
    """Yield an engine for `database` with another driver, whose connections are not pooled: those of a driver for
    asyncio belong to the event loop that opened them."""
    url, hole = database.url.set(drivername=driver), None
    if "host" in url.query:  # a Unix domain socket, which some drivers cannot use
        hole = BlackHole(url)
        url = through(hole, url)
    if url.get_dialect().is_async:
        yield create_async_engine(url, poolclass=NullPool).sync_engine
    else:
        yield create_engine(url, poolclass=NullPool)
    if hole is not None:
        hole.close()


def on_a_loop(function: Function) -> Function:
    """Return ``function`` so that drivers for asyncio work in it: it runs on an event loop of its own."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return asyncio.run(greenlet_spawn(function, *arguments, **options))

    return call
