"""SQLSTATE error codes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError

from ..parts.errors import Errors, comes_from_network, first_argument

# admin shutdown, crash shutdown, cannot connect now, idle session timeout, read-only (such as a demoted primary)
_OUTAGES = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})
# connection exceptions, insufficient resources (a full disk, too many connections), system errors
_OUTAGE_CLASSES = ("08", "53", "58")
# and transaction state, authorization, unknown database, rollback (a deadlock), limits, state of an object (a lock),
# intervention (a statement timeout), internal errors
_TEMPORARY_CLASSES = (*_OUTAGE_CLASSES, "25", "28", "3D", "40", "54", "55", "57", "XX")
# idle-in-transaction and transaction timeouts, which close the connection as well
_TOO_SLOW = frozenset({"25P03", "25P04"})


class PostgreSQLErrors(Errors):
    """Errors with an SQLSTATE, which each driver keeps in its own place."""

    def __init__(self) -> None:
        super().__init__(
            # serialization failure, deadlock, lock not available
            transient=("40001", "40P01", "55P03"),
            outages=_OUTAGES,
            duplicates=("23505",),
            references=("23001", "23503"),
            denied=("42501",),
        )

    def code(self, error: DBAPIError) -> Any:
        for name in ("sqlstate", "pgcode"):  # psycopg and asyncpg; psycopg2
            if found := getattr(error.orig, name, None):
                return found
        fields = first_argument(error)  # pg8000: those of the server's message
        return fields.get("C") if isinstance(fields, dict) else None

    def has_lost(self, error: DBAPIError) -> bool:
        code = self.code(error)
        if error.connection_invalidated:
            return code not in _TOO_SLOW
        # without a code, the client could not connect
        if code is None:
            return isinstance(error, OperationalError) or comes_from_network(error)
        return code in self.outages or code.startswith(_OUTAGE_CLASSES)

    def is_temporary(self, error: DBAPIError) -> bool:
        code = self.code(error)
        if code is None:
            return super().is_temporary(error)
        return self.is_outage(error) or code.startswith(_TEMPORARY_CLASSES)
