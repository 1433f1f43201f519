"""ORA error numbers, and error codes of python-oracledb."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError

from ..parts.errors import Errors, first_argument

# https://docs.oracle.com/error-help/db/
_TRANSIENT = (
    # resource busy, at once or for too long; deadlock, of rows or of definitions; cannot serialize access
    *(54, 30006, 4021, 60, 4020, 8177),
)
_OUTAGES = (
    # session killed, not logged on, closed
    *(28, 1012, 3113, 3114, 3135, 12537, 12547, 12571),
    # starting, not available, shut down, not open
    *(1033, 1034, 1089, 1090, 1092, 1109),
    # the listener: service or instance unknown or full; unreachable, unknown host, no answer
    *(12505, 12514, 12516, 12518, 12519, 12520, 12521, 12528, 12541, 12545, 12543, 12170),
    # too many sessions, too many processes; archive full, table or index or undo cannot grow
    *(18, 20, 257, 1653, 1654, 30036),
    # read-only (such as a standby)
    16000,
    # python-oracledb: not connected, closed; refused, no such service, no such SID, proxy, cannot connect
    # https://python-oracledb.readthedocs.io/en/latest/user_guide/troubleshooting.html
    *("DPY-1001", "DPY-4011", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6004", "DPY-6005"),
)

_COMPILATION = 6550
_HIDDEN_PACKAGE = re.compile(r"PLS-00201: .*'(SYS\.)?DBMS_")
"""What the error of a block contains if it calls a package of the server on which the account has no privilege: that it
is not declared (https://docs.oracle.com/en/error-help/db/pls-00201/)."""


class OracleErrors(Errors):
    """Codes of the server or the driver."""

    def __init__(self) -> None:
        super().__init__(
            transient=_TRANSIENT,
            outages=_OUTAGES,
            duplicates=(1,),
            references=(2292,),
            # insufficient privileges; a table that does not exist for this account
            denied=(1031, 41900, 942),
        )

    def is_denied(self, error: DBAPIError) -> bool:
        # any other error of compilation is a fault of the block
        is_hidden = self.code(error) == _COMPILATION and _HIDDEN_PACKAGE.search(str(error.orig)) is not None
        return super().is_denied(error) or is_hidden

    def has_lost(self, error: DBAPIError) -> bool:
        # the driver or the server marks the error as recoverable
        return super().has_lost(error) or getattr(first_argument(error), "isrecoverable", False)

    def code(self, error: DBAPIError) -> Any:
        # the driver's own errors, such as a refused connection, have the number 0
        told = first_argument(error)
        return getattr(told, "code", None) or getattr(told, "full_code", None)
