"""A healthy database, and an account with few privileges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from sqlqueue import Finding
from tests.check.checking import READER, drop, looked
from tests.support.check_models import Base
from tests.support.engines import PASSWORD
from tests.support.harness import Database


@pytest.fixture
def healthy(sync_db: Database) -> Iterator[Database]:
    drop(sync_db)
    Base.metadata.create_all(sync_db.engine)
    yield sync_db.variant(isolation_level="SERIALIZABLE" if sync_db.case.one_writer else "READ COMMITTED")
    drop(sync_db)


@pytest.fixture
def reader(healthy: Database) -> Iterator[Callable[..., list[Finding]]]:
    """Return the findings of an account with only these privileges."""
    case = healthy.case
    administrator = create_engine(healthy.url.set(username=case.administrator), poolclass=NullPool)
    url = healthy.url.set(username=READER, password=PASSWORD)
    engine = create_engine(url, isolation_level="READ COMMITTED", poolclass=NullPool)

    def look(*grants: str, target: Any = Base) -> list[Finding]:
        with administrator.begin() as connection:
            # it needs at least access to the database
            for grant in ("SELECT ON account", *grants):
                connection.exec_driver_sql(f"GRANT {grant} TO {READER}")
        with engine.connect() as connection:
            return looked(connection, target)

    with administrator.begin() as connection:
        connection.exec_driver_sql(case.account_sql.format(name=READER, password=PASSWORD))
    yield look
    drop(healthy)
    with administrator.begin() as connection:
        connection.exec_driver_sql(f"REVOKE SELECT ON account FROM {READER}")
        connection.exec_driver_sql(f"DROP USER {READER}")
