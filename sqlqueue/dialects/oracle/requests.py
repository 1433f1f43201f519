"""Executes SQL tasks with python-oracledb."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from ..parts.requests import FORMER, Interrupt, Requests, milliseconds


class OracleRequests(Requests):
    """Limits the time and cancels statements through the driver."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        driver: Any = connection.connection.driver_connection
        connection.info.setdefault(FORMER, driver.call_timeout)
        driver.call_timeout = milliseconds(timeout)

    def lift_limit(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.call_timeout = connection.info.pop(FORMER)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.cancel()
