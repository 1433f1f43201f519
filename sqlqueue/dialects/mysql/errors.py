"""Error numbers of the server."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError

from ..parts.errors import Errors, first_argument

# statement killed; max_execution_time on MySQL, max_statement_time on MariaDB
_INTERRUPTED = (1317, 3024, 1969)


class MySQLErrors(Errors):
    """Error numbers that MySQL, MariaDB and their drivers share."""

    def __init__(self) -> None:
        super().__init__(
            transient=(
                # deadlock, lock wait timeout, lock not available at once, record has changed since last read
                *(1213, 1205, 3572, 1020),
                # group replication rejects the commit, which conflicts with another server's
                3101,
            ),
            outages=(
                # shutdown, killed, cannot connect, gone away, lost
                *(1053, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031),
                # too many connections (of all, of an account), disk full, table full
                *(1040, 1203, 1021, 1114),
                # read-only (such as a demoted primary)
                *(1290, 1836),
                # a Galera node that has not joined or lost its quorum; a commit that the cluster cannot carry out
                *(1047, 1180),
            ),
            duplicates=(1062, 1586),
            references=(1217, 1451),
            # access denied to a database, a table, a column
            denied=(1044, 1142, 1143),
            # removed by a deadlock, which ends the transaction
            lost_savepoints=(1305,),
        )

    def is_temporary(self, error: DBAPIError) -> bool:
        return self._has(error, _INTERRUPTED) or super().is_temporary(error)

    def code(self, error: DBAPIError) -> Any:
        # MariaDB's connector has the number in an attribute only; the others also, or only, as the first argument
        return getattr(error.orig, "errno", None) or first_argument(error)
