"""MySQL and MariaDB, in containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.engines.case import ACCOUNT, PASSWORD, Container, EngineCase


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

# this view is refreshed only if it was not read for a tenth of a second, but performance_schema.data_lock_waits returns
# the wrong thread where an implicit lock had to be made explicit
_MYSQL_WAITS = (
    "SELECT count(*) FROM information_schema.innodb_trx"
    " WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {connection}"
)

_MYSQL_FAULTS = (
    (("SET GLOBAL read_only = ON",), ("SET GLOBAL read_only = OFF",)),
    (("SET GLOBAL max_connections = 10",), ("SET GLOBAL max_connections = 200",)),
)

_MYSQL_READS = "SELECT sum(variable_value) FROM {schema}.session_status WHERE variable_name LIKE 'Handler_read%'"

_MYSQL_REQUESTS = "SELECT variable_value FROM {schema}.session_status WHERE variable_name = 'Questions'"

_MYSQL_PARTITIONS = "SELECT count(partition_name) FROM information_schema.partitions WHERE table_name = 'parted'"

_MYSQL_TRUNCATE = ("SET FOREIGN_KEY_CHECKS = 0", "TRUNCATE TABLE {table}", "SET FOREIGN_KEY_CHECKS = 1")

_MANY_ROWS = ", ".join(f"information_schema.columns {name}" for name in "abcd")

MYSQL = EngineCase(
    name="mysql",
    indexes_foreign_keys=True,
    odd_times=("'0000-00-00'", "'2024-00-00'"),
    odd_mode="SET SESSION sql_mode = ''",
    sql_modes=({"init_command": "SET SESSION sql_mode = 'ANSI'"},),
    narrow_column="ALTER TABLE {table} MODIFY claimed_by VARCHAR(200) CHARACTER SET ascii",
    loose_collation="utf8mb4_general_ci",
    statements_row="on MySQL, MariaDB",
    expression_indexes=True,
    hide_index="ALTER TABLE {table} ALTER INDEX {index} INVISIBLE",
    trigger_sql="CREATE DEFINER = CURRENT_USER() TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW SET @fired = 1",
    sync_driver="mysql+pymysql",
    async_driver="mysql+aiomysql",
    other_drivers=("aiomysql", "asyncmy", "mysqldb", "mysqlconnector"),
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
    faults=_MYSQL_FAULTS,
    connection_id="connection_id",
    waits_sql=_MYSQL_WAITS,
    kill_sql="KILL {connection}",
    slow_sql=("SET SESSION max_execution_time = 50", f"SELECT count(*) FROM {_MANY_ROWS}"),
    impatient_sql="SET SESSION innodb_lock_wait_timeout = 1",
    conflict_sql=_SIGNAL.format(1213),
    failing_sql=_FAILING,
    account_sql="CREATE USER {name} IDENTIFIED BY '{password}'",
    read_only_sql="SET SESSION TRANSACTION READ ONLY",
    naive_moments="warning",
    other_storage="MyISAM",
    misleading_index="status, subject(4), id, available_at",
    plans_empty_tables=True,
    definition_sql="SHOW CREATE TABLE `{table}`",
    odd_values=_MYSQL_VALUES,
    timeout_liftings=_MYSQL_LIFTINGS,
    file_requests=("LOAD DATA LOCAL INFILE '{path}' INTO TABLE ledger (worker) SET task_id = 1",),
    timeout_preparation=_mysql_preparation("max_execution_time"),
)

MARIADB = replace(
    MYSQL,
    name="mariadb",
    sql_modes=tuple(
        {"init_command": f"SET SESSION sql_mode = '{mode}'"} for mode in ("ANSI", "ORACLE", "EMPTY_STRING_IS_NULL")
    ),
    expression_indexes=False,
    hide_index="ALTER TABLE {table} ALTER INDEX {index} IGNORED",
    sync_driver="mariadb+pymysql",
    async_driver="mariadb+aiomysql",
    other_drivers=(*MYSQL.other_drivers, "mariadbconnector"),
    container=_mysql_container("mariadb:11.8", "MARIADB", "mariadbd", plain="--skip-ssl"),
    reads_sql=_MYSQL_READS.format(schema="information_schema"),
    requests_sql=_MYSQL_REQUESTS.format(schema="information_schema"),
    strict_snapshots=True,
    other_storage="Aria",
    insert_returns=True,
    slow_sql=("SET SESSION max_statement_time = 0.05", "SELECT sleep(60)"),
    timeout_preparation=_mysql_preparation("max_statement_time"),
)
