"""SQL of others."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from ..parts.requests import Requests


class SQLServerRequests(Requests):
    """The driver limits the time."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # what the server has, QUERY_GOVERNOR_COST_LIMIT, is about estimates; by this the driver cancels there
        driver: Any = connection.connection.driver_connection
        driver.timeout = max(math.ceil(timeout.total_seconds()), 1)
