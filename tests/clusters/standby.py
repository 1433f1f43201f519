"""A PostgreSQL primary and its standby."""

from __future__ import annotations

import time
from contextlib import ExitStack

from tests.clusters.nodes import IMAGES, POSTGRESQL, Network, urls
from tests.support.engines import ACCOUNT, PASSWORD

_PRIMARY = "exec docker-entrypoint.sh postgres -c max_wal_senders=4 -c hot_standby=on -c wal_keep_size=64"
_STANDBY = f"""
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
until "$bin/pg_basebackup" -d "host=primary user={ACCOUNT} password={PASSWORD}" -D /tmp/standby -R -X stream
do sleep 1; done
exec "$bin/postgres" -D /tmp/standby -c listen_addresses='*' -c unix_socket_directories=/tmp
"""
_ENVIRONMENT = {"POSTGRES_USER": ACCOUNT, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": ACCOUNT}
_REPLICATION = "SELECT state, sync_state FROM pg_stat_replication WHERE application_name = 'walreceiver'"


class Pair:
    def __init__(self, stack: ExitStack, *, synchronous: bool) -> None:
        network = Network(IMAGES["postgresql"], POSTGRESQL, stack)
        self.case = POSTGRESQL
        self.is_synchronous = synchronous
        self.name = "synchronous standby" if synchronous else "asynchronous standby"
        self.primary = network.run("primary", _PRIMARY, _ENVIRONMENT)
        # the image starts the server once without a network, to initialize it
        self.primary.wait_until(lambda row: row == (1,), "SELECT 1")
        self._admit_replication()
        self.standby = network.run("standby", _STANDBY, {}, user="postgres")
        self.primary.wait_until(lambda row: row is not None and row[0] == "streaming", _REPLICATION)
        if synchronous:
            self.primary.tell("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            self.primary.wait_until(lambda row: row == ("streaming", "sync"), _REPLICATION)
        self.url = urls([self.primary, self.standby])
        """The URL of both servers: clients choose the one that accepts writes."""

    def _admit_replication(self) -> None:
        (path,) = self.primary.ask("SHOW hba_file")
        rule = "host replication all all scram-sha-256"
        self.primary.tell(f"COPY (SELECT '{rule}') TO PROGRAM 'cat >> {path}'", "SELECT pg_reload_conf()")

    def fall_behind(self) -> None:
        """Stop the replication: commits from now on do not reach the standby."""
        self.standby.tell("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        self.standby.wait_until(lambda row: row == (0,), "SELECT count(*) FROM pg_stat_wal_receiver")

    def fail_over(self) -> float:
        """Kill the primary and promote the standby; return when that accepts writes, by ``time.monotonic``."""
        self.primary.kill()
        time.sleep(1)  # the time that a failover manager needs
        self.standby.tell("SELECT pg_promote(wait => true)")
        return time.monotonic()
