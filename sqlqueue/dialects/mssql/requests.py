"""Executes SQL tasks on SQL Server."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from ..parts.requests import FORMER, Requests


class SQLServerRequests(Requests):
    """Limits the time through the driver."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # the server's QUERY_GOVERNOR_COST_LIMIT limits estimates only; with a timeout, the driver cancels statements
        driver: Any = connection.connection.driver_connection
        connection.info.setdefault(FORMER, driver.timeout)
        driver.timeout = max(math.ceil(timeout.total_seconds()), 1)

    def lift_limit(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.timeout = connection.info.pop(FORMER)
