"""The conformance suite that packages import, on the engines that come with sqlqueue."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sqlqueue.testing.conformance import *  # noqa: F403  # as a package does it: whatever there is to be run
from tests.support.harness import Database


@pytest.fixture
def conformance_engine(sync_db: Database) -> Engine:
    case = sync_db.case
    # On engines with one writer, a test waits until the driver times out.
    settings = [case.foreign_keys_sql, case.impatient_sql if case.one_writer else None]
    return sync_db.variant(on_connect=[each for each in settings if each]).session_engine
