"""Engines that the project cannot run by itself: SQL Server, Babelfish, Oracle, CockroachDB."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

from tests.support.babelfish import PLUGIN
from tests.support.engines.case import ACCOUNT, PASSWORD, Container, EngineCase

SQL_SERVER = EngineCase(
    name="mssql",
    own_clock_default=True,
    blanks_count=False,
    drops_blanks=True,
    explains=False,
    names_defaults=True,
    hide_index="ALTER INDEX {index} ON {table} DISABLE",
    trigger_sql="CREATE OR ALTER TRIGGER {name} ON {table} AFTER UPDATE AS SET NOCOUNT ON",
    partial_indexes=True,
    sync_driver="mssql+pyodbc",
    async_driver="mssql+aioodbc",
    container=Container(
        image="mcr.microsoft.com/mssql/server:2022-latest",
        port=1433,
        environment={"ACCEPT_EULA": "Y", "MSSQL_PID": "Developer", "MSSQL_SA_PASSWORD": PASSWORD},
        username="sa",
        query={"driver": "ODBC Driver 18 for SQL Server", "TrustServerCertificate": "yes"},
        prepare=(f"CREATE DATABASE {ACCOUNT}", f"ALTER DATABASE {ACCOUNT} SET READ_COMMITTED_SNAPSHOT ON"),
        large=True,
        patience=timedelta(minutes=3),
    ),
    drops_any_column=False,
    reads_defaults_back=False,
    impatient_sql="SET LOCK_TIMEOUT 100",
    grants="in {database}: ALTER ROLE db_owner ADD MEMBER {name}",
    condition=(
        "SELECT CAST(is_read_committed_snapshot_on AS int) FROM sys.databases WHERE database_id = DB_ID()",
        "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE",
    ),
    another_database=(
        ("CREATE DATABASE {name}", "ALTER DATABASE {name} SET READ_COMMITTED_SNAPSHOT OFF"),
        ("ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE", "DROP DATABASE {name}"),
    ),
)


_ORACLE_EDITION = "XE" if "oracle-xe" in os.environ.get("SQLQUEUE_TEST_ORACLE_IMAGE", "") else "FREE"
"""The edition in the image, which names the database that the image creates: Express Edition before 23ai."""

ORACLE = EngineCase(
    name="oracle",
    explains=False,
    own_clock_default=True,
    blanks_count=False,
    hide_index="ALTER INDEX {index} INVISIBLE",
    trigger_sql="CREATE OR REPLACE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW BEGIN NULL; END;",
    sync_driver="oracle+oracledb",
    async_driver="oracle+oracledb_async",
    container=Container(
        image="gvenzl/oracle-free:23-slim-faststart",
        port=1521,
        environment={"ORACLE_PASSWORD": PASSWORD, "APP_USER": ACCOUNT, "APP_USER_PASSWORD": PASSWORD},
        database=None,
        query={"service_name": f"{_ORACLE_EDITION}PDB1"},
        large=True,
        patience=timedelta(minutes=5),
    ),
    time_zone_sql="ALTER SESSION SET TIME_ZONE = '{offset}'",
    grants="GRANT CONNECT, RESOURCE, UNLIMITED TABLESPACE TO {name}",
)


COCKROACHDB = EngineCase(
    name="cockroachdb",
    partial_indexes=True,
    concurrent_indexes=True,
    sync_driver="cockroachdb+psycopg",
    async_driver="cockroachdb+psycopg",
    container=Container(
        image="cockroachdb/cockroach:latest-v25.2",
        port=26257,
        command="start-single-node --insecure",
        fast="--store=type=mem,size=1GiB",
        username="root",
        password=None,
        database="defaultdb",
        large=True,
    ),
    time_zone_sql="SET TIME ZONE {hours}",
)


_FREETDS = "FreeTDS" in os.environ.get("SQLQUEUE_TEST_BABELFISH_URL", "FreeTDS")
"""Whether Babelfish is reached with that driver; with Microsoft's, its limits differ."""

BABELFISH = replace(
    SQL_SERVER,
    name="babelfish",
    plugin=PLUGIN,
    container=None,
    obeys_hints=False,
    sends_long_texts=not _FREETDS,  # which SQLAlchemy declares as NVARCHAR(max)
    sends_control_characters=not _FREETDS,
    describes_tables_soon=False,
    changes_defaults=False,  # it does not have their names
    keeps_collations=False,
    keeps_index_names=False,
    names_brackets=False,
    claims_in_schemas=False,
    hide_index=None,
    impatient_sql=None,  # its error has a different number
    condition=None,
    another_database=None,
)
