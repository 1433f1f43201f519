"""The clock of SQL Server, whose DATEADD takes an int."""

from __future__ import annotations

import math
import sqlite3
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import mssql

from sqlqueue import utcnow
from sqlqueue._support.checks import LONGEST_DURATION

NOW = datetime(2026, 3, 4, 5, 6, 7, 250_000)
UNITS = ("microsecond", "second", "minute", "day")


def _dateadd(unit: str, number: float, moment: str) -> str:
    whole = int(number)
    assert -(2**31) <= whole < 2**31, f"error 8115: {whole} {unit}s are no int"
    return (datetime.fromisoformat(moment) + timedelta(**{f"{unit}s": whole})).isoformat()


@pytest.mark.parametrize(
    "duration",
    [timedelta(0), timedelta(seconds=90.5), timedelta(seconds=-90.5), LONGEST_DURATION, -LONGEST_DURATION],
)
def test_every_duration_fits(duration: timedelta) -> None:
    """The arithmetic is evaluated on an engine that has the same operators but not this function."""
    asked = str(select(utcnow(duration)).compile(dialect=mssql.dialect(), compile_kwargs={"literal_binds": True}))
    with sqlite3.connect(":memory:") as connection:
        connection.create_function("dateadd", 3, _dateadd)
        connection.create_function("floor", 1, math.floor)
        connection.create_function("sysutcdatetime", 0, NOW.isoformat)
        units = ", ".join(f"'{unit}' AS {unit}" for unit in UNITS)
        (found,) = connection.execute(f"{asked} FROM (SELECT {units})").fetchone()
    connection.close()
    assert datetime.fromisoformat(found) == NOW + duration
