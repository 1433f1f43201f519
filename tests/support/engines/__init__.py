"""The engines that the tests run on.

To add an engine, add its case to `ENGINES`. Tests query capabilities, never the name of an engine.
"""

from __future__ import annotations

import os

from tests.support.engines.case import ACCOUNT, PASSWORD, Container, EngineCase
from tests.support.engines.mysql import MARIADB, MYSQL
from tests.support.engines.postgresql import POSTGRESQL
from tests.support.engines.sqlite import SQLITE
from tests.support.engines.unavailable import BABELFISH, COCKROACHDB, ORACLE, SQL_SERVER

__all__ = [
    "ACCOUNT",
    "CHOSEN",
    "ENGINES",
    "PASSWORD",
    "REQUIRED",
    "SELECTED",
    "Container",
    "EngineCase",
    "engines_named_by",
]

ENGINES = (SQLITE, POSTGRESQL, MYSQL, MARIADB, SQL_SERVER, ORACLE, COCKROACHDB, BABELFISH)


def engines_named_by(variable: str) -> frozenset[str]:
    """The engines listed in an environment variable, such as SQLQUEUE_REQUIRE=postgresql,mysql."""
    names = frozenset(name.strip() for name in os.environ.get(variable, "").split(",") if name.strip())
    if unknown := names - {case.name for case in ENGINES}:
        raise ValueError(f"{variable} names unknown engines: {', '.join(sorted(unknown))}")
    return names


REQUIRED = engines_named_by("SQLQUEUE_REQUIRE")
CHOSEN = engines_named_by("SQLQUEUE_TEST_ENGINES")
SELECTED = tuple(
    case
    for case in ENGINES
    if case.name in CHOSEN | REQUIRED or (not CHOSEN and (not case.only_by_url or case.url_variable in os.environ))
)
