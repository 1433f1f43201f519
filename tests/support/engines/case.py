"""The description of an engine for the tests: its drivers, the source of its server, and its capabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import NoSuchModuleError

from tests.support.containers import first_line

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
    """Whether the image is gigabytes large: it is pulled only if the engine is requested by name."""
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
    other_drivers: tuple[str, ...] = ()
    """The names of all drivers but `sync_driver` that can be used, some of which may not be installed."""
    container: Container | None = None
    embedded: Callable[[Path], str] | None = None
    """A function that starts the engine in a directory, without Docker, and returns its URL."""
    embedded_in: str | None = None
    """The package with which it does so, apart from the standard library."""
    small: bool = False
    """Its data fits in memory, where commits need not wait for a disk."""

    plugin: str | None = None
    """A plugin for SQLAlchemy's engines that works around what the server lacks."""

    tells_lock_owners: bool = False
    """The server reports which transaction has locked a row."""
    one_writer: bool = False
    """A writer locks the whole database; on other engines, claimers lock single rows."""
    obeys_hints: bool = True
    """The engine obeys lock hints; without this, two claimers may get the same row."""
    sends_long_texts: bool = True
    """The driver takes text parameters of more than 2,000 characters."""
    sends_control_characters: bool = True
    """A connection of the driver survives texts with control characters."""
    describes_tables_soon: bool = True
    """Each catalog query ends within the time that a stopping worker waits for its own statements."""
    statements_row: str = ""
    """The label of its row of statement counts in docs/explanation/semantics.md."""
    children_never_wait: bool = False
    """A claim and an insert of a child row of the claimed row do not wait for each other."""
    foreign_keys_sql: str | None = None
    """Makes a connection enforce foreign keys, if it does not by default."""
    indexes_foreign_keys: bool = False
    """Every foreign key has an index."""
    notifies: bool = False
    """A commit can notify other processes."""
    copies: bool = False
    """Rows can be loaded by COPY."""
    insert_returns: bool = False
    """An INSERT can return rows."""
    odd_values: Mapping[str, object] = field(default_factory=dict)
    """SQL expressions, and their values in a response."""
    timeout_preparation: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Statements that create, and statements that drop, the objects that the statements below need."""
    timeout_liftings: tuple[str, ...] = ()
    """Statements that run for minutes and lift the timeouts of their session."""
    impostors: tuple[Sequence[str], Sequence[str]] | None = None
    """Statements that create, and statements that drop, a schema in which anyone may create functions, and which has
    functions that fail, with the names and arguments of built-in ones."""
    impostor_at_start: str = ""
    """Creates an impostor that does not end, of a function that SQLAlchemy calls when it connects."""
    impostors_first: str = ""
    """Makes a session prefer them."""
    file_requests: tuple[str, ...] = ()
    """Statements that read or write the file `{path}` of the program's host, if the driver lets them."""
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
    gate_sql: tuple[str, ...] = ()
    """A lock on which criteria can wait: the statements that release it, that acquire it, and that count the sessions
    waiting for it, and the criterion."""
    generic_plans: tuple[str, Mapping[str, object]] | None = None
    """Makes a session prepare its statements with generic plans: a statement, and arguments of the driver."""
    time_resolution: timedelta = timedelta(microseconds=1)
    time_zone_sql: str | None = None
    """Sets a session's time zone to an `{offset}` from UTC, or the offset in `{hours}`, if sessions have one."""
    own_clock_default: bool = False
    """CURRENT_TIMESTAMP as a column default uses the time zone of the session or the server."""
    odd_times: tuple[str, ...] = ()
    """Literals that a time column accepts, and that have no time in Python, the first in the past."""
    odd_mode: str | None = None
    """The statement after which a session accepts them."""
    truncate: tuple[str, ...] = ()
    """Statements that empty a large `{table}` quickly, despite foreign keys."""
    sql_modes: tuple[Mapping[str, str], ...] = ()
    """Arguments of `connect` that change the meaning of a session's SQL."""
    loose_collation: str | None = None
    """A collation that ignores case."""
    blanks_count: bool = True
    """Trailing blanks are significant in comparisons, and the empty text is not NULL."""
    drops_blanks: bool = False
    """All collations ignore trailing blanks."""
    row_security: bool = False
    """Policies decide which rows a role sees, as in PostgreSQL."""
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
    expression_indexes: bool = False
    """An index may be on an expression."""
    hash_partitions_sql: Sequence[str] = ()
    """Creates the partitions of a `{table}` that is divided by hash, each of which has indexes of its own."""
    concurrent_indexes: bool = False
    """Indexes can be created CONCURRENTLY, which may fail halfway."""
    hide_index: str | None = None
    """Makes an `{index}` of a `{table}` unusable for queries."""
    trigger_sql: str | None = None
    """Creates a trigger `{name}` of a `{table}`."""
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
    """Keys come from a sequence, which needs a separate privilege."""
    read_only_sql: str | None = None
    """Makes the transactions of a session read-only."""
    naive_moments: str | None = None
    """The severity of the finding for times in a plain `DateTime()`: `error`, `warning`, or `None` for no finding."""
    other_storage: str | None = None
    """A storage engine without transactions."""
    distribute_sql: Sequence[str] = ()
    """Makes {table} look as if an extension had distributed it among servers, and undoes that."""
    misleading_index: str | None = None
    """The columns of the claim index in an order that claims cannot use."""
    explains: bool = True
    """The library reads query plans."""
    changes_defaults: bool = True
    """A migration can change the default of a column."""
    keeps_collations: bool = True
    """The catalog stores the names of collations as given."""
    keeps_index_names: bool = True
    """The catalog stores the names of indexes as given, including their case and full length."""
    names_brackets: bool = True
    """A name may contain square brackets."""
    claims_in_schemas: bool = True
    """Tables outside the account's own schema can be claimed from."""
    plans_empty_tables: bool = False
    """Whether an index would be used can be determined for empty tables too."""
    without_indexes: str | None = None
    """Keeps a session's planner from using the order of an index."""
    waits_sql: str = ""
    """A query, run by the administrator, for whether a `{connection}` waits for a lock."""
    connections_sql: str | None = None
    """Returns the connections of this account to this database except the current one."""
    connection_id: str | None = None
    """The SQL function that returns the current connection's id."""
    kill_sql: str | None = None
    """Ends a `{connection}`."""
    faults: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Statements of the administrator that make the server read-only or refuse connections, and those that undo it."""
    slow_sql: tuple[str, ...] = ()
    """Statements of which the last one exceeds a time limit of the server."""
    impatient_sql: str | None = None
    """Limits a session's waits for locks to a second."""
    conflict_sql: str | None = None
    """Raises the error of a deadlock victim."""
    failing_sql: Mapping[str, str] = field(default_factory=dict)
    """Statements that raise errors of a cluster, and their class: "transient" or "outage"."""
    narrow_options: Mapping[str, str] = field(default_factory=dict)
    """The driver's options for a connection whose character set has no euro sign."""
    narrow_column: str | None = None
    """Gives `claimed_by` of {table} a character set that has no euro sign."""
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
        """Whether several claimers can work concurrently."""
        return not self.one_writer and self.obeys_hints

    @property
    def is_embedded(self) -> bool:
        """Whether it can be started without Docker."""
        return self.embedded is not None and (self.embedded_in is None or find_spec(self.embedded_in) is not None)

    @property
    def missing_driver(self) -> str | None:
        """Why a driver cannot be used."""
        for driver in (self.sync_driver, self.async_driver):
            try:
                URL.create(driver).get_dialect().import_dbapi()
            except (ImportError, NoSuchModuleError) as error:
                return f"no driver {driver}: {first_line(error)}"
        return None

    @property
    def url_variable(self) -> str:
        return f"SQLQUEUE_TEST_{self.name.upper()}_URL"

    @property
    def given(self) -> URL | None:
        """The URL of an external database, or ``None``."""
        if not (given := os.environ.get(self.url_variable)):
            return None
        return make_url(given).update_query_dict({"plugin": self.plugin} if self.plugin else {})

    @property
    def image_variable(self) -> str:
        return f"SQLQUEUE_TEST_{self.name.upper()}_IMAGE"
