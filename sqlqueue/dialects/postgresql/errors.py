"""SQLSTATE error codes."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, OperationalError

from ..parts.errors import Errors

# admin shutdown, crash shutdown, cannot connect now, idle session timeout, read-only (such as a demoted primary)
_OUTAGES = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})
# connection exceptions, insufficient resources (a full disk, too many connections), system errors
_OUTAGE_CLASSES = ("08", "53", "58")
# idle-in-transaction and transaction timeouts, which close the connection as well
_TOO_SLOW = frozenset({"25P03", "25P04"})


class PostgreSQLErrors(Errors):
    """Errors with an SQLSTATE, which every driver provides."""

    def __init__(self) -> None:
        super().__init__(
            # serialization failure, deadlock, lock not available
            transient=("40001", "40P01", "55P03"),
            outages=_OUTAGES,
            duplicates=("23505",),
            references=("23001", "23503"),
        )

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlstate", None)

    def is_outage(self, error: DBAPIError) -> bool:
        code = self.code(error)
        if error.connection_invalidated:
            return code not in _TOO_SLOW
        # an operational error without a code comes from the client: it could not connect
        if code is None:
            return isinstance(error, OperationalError)
        return code in self.outages or code.startswith(_OUTAGE_CLASSES)
