"""The engines that the tests run on.

To add an engine, add its case to `ENGINES`. Tests query capabilities, never the name of an engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from tests.support.containers import Unavailable, find_image
from tests.support.engines.case import ACCOUNT, PASSWORD, Container, EngineCase
from tests.support.engines.mysql import MARIADB, MYSQL
from tests.support.engines.postgresql import POSTGRESQL
from tests.support.engines.sqlite import SQLITE
from tests.support.engines.unavailable import BABELFISH, COCKROACHDB, ORACLE, SQL_SERVER

__all__ = [
    "ABSENT",
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

_DECIDED = "SQLQUEUE_TESTS_WITHOUT"

ENGINES = (SQLITE, POSTGRESQL, MYSQL, MARIADB, SQL_SERVER, ORACLE, COCKROACHDB, BABELFISH)


def engines_named_by(variable: str) -> frozenset[str]:
    """The engines listed in an environment variable, such as SQLQUEUE_REQUIRE=postgresql,mysql."""
    names = frozenset(name.strip() for name in os.environ.get(variable, "").split(",") if name.strip())
    if unknown := names - {case.name for case in ENGINES}:
        raise ValueError(f"{variable} names unknown engines: {', '.join(sorted(unknown))}")
    return names


REQUIRED = engines_named_by("SQLQUEUE_REQUIRE")
CHOSEN = engines_named_by("SQLQUEUE_TEST_ENGINES")


def _absent() -> Mapping[str, str]:
    """Return why each engine that was not asked for does not run here.

    Its tests are not even collected. The processes of one run must collect the same tests, so the first one decides.
    """
    if (decided := os.environ.get(_DECIDED)) is None:
        reasons = {case.name: _why_absent(case) for case in ENGINES}
        decided = os.environ[_DECIDED] = json.dumps({name: reason for name, reason in reasons.items() if reason})
    absent: Mapping[str, str] = json.loads(decided)
    return absent


def _why_absent(case: EngineCase) -> str | None:
    if case.name in CHOSEN | REQUIRED:
        return None
    if CHOSEN:
        return "not in SQLQUEUE_TEST_ENGINES"
    if case.given or case.missing_driver or case.is_embedded:
        return case.missing_driver
    if case.container is None:
        return f"{case.url_variable} is not set"
    try:
        find_image(os.environ.get(case.image_variable, case.container.image), wanted=not case.container.large)
    except Unavailable as reason:
        return str(reason)
    return None


ABSENT = _absent()
SELECTED = tuple(case for case in ENGINES if case.name not in ABSENT)
