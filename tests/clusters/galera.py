"""A Galera cluster of three nodes, each of which accepts writes."""

from __future__ import annotations

from contextlib import ExitStack

from sqlalchemy.exc import DBAPIError

from tests.clusters.nodes import IMAGES, MARIADB, Network, Node
from tests.support.engines import ACCOUNT, PASSWORD

_NAMES = ("node-1", "node-2", "node-3")
_SCRIPT = f"""
provider=$(ls /usr/lib/galera/libgalera_smm.so /usr/lib/libgalera_smm.so 2>/dev/null | head -n 1)
[ "$provider" ] || {{ echo "this image lacks Galera's library"; exit 1; }}
method=rsync
command -v mariadb-backup >/dev/null && method=mariabackup
first=
[ "$(hostname)" = node-1 ] && [ ! -e /var/lib/mysql/grastate.dat ] && first=--wsrep-new-cluster
exec docker-entrypoint.sh mariadbd --wsrep_on=ON --wsrep_provider=$provider \
  --wsrep_cluster_name=sqlqueue --wsrep_cluster_address=gcomm://{",".join(_NAMES)} --wsrep_node_name="$(hostname)" \
  --wsrep_sst_method=$method --wsrep_sst_auth="root:$MARIADB_ROOT_PASSWORD" --wsrep_slave_threads=2 \
  --binlog-format=ROW --innodb-autoinc-lock-mode=2 --innodb-flush-log-at-trx-commit=0 --max-connections=300 $first
"""
_SIZE = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_cluster_size'"
_STATE = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_local_state_comment'"
_ENVIRONMENT = {
    "MARIADB_ROOT_PASSWORD": PASSWORD,
    "MARIADB_DATABASE": ACCOUNT,
    "MARIADB_USER": ACCOUNT,
    "MARIADB_PASSWORD": PASSWORD,
}


class Galera:
    def __init__(self, stack: ExitStack) -> None:
        network = Network(IMAGES["galera"], MARIADB, stack)
        self.nodes: list[Node] = []
        for number, name in enumerate(_NAMES, 1):  # one after the other, since each copies its data from earlier ones
            self.nodes.append(network.run(name, _SCRIPT, _ENVIRONMENT))
            self.wait_until_synced(self.nodes[-1])
            self.wait_for_size(number)

    def wait_until_synced(self, node: Node) -> None:
        node.wait_until(lambda row: row == ("Synced",), _STATE)

    def is_refused(self, node: Node) -> bool:
        """Return whether ``node`` rejects queries, as it does without a quorum."""
        try:
            node.ask(_STATE)
        except DBAPIError:
            return True
        return False

    def wait_for_size(self, size: int) -> None:
        self.nodes[0].wait_until(lambda row: row == (str(size),), _SIZE)
