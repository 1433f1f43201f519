"""How errors of an Oracle Database are classified, as python-oracledb raises them."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from sqlqueue.dialects import adapter_for
from tests.drivers.cases import raised, taken_for

oracledb = pytest.importorskip("oracledb")
errors = pytest.importorskip("oracledb.errors")


def told(message: str, number: int = 0) -> str:
    """Return the classification of the driver's error with this message, and with this number if it is the server's."""

    def fail() -> None:
        error = errors._Error(message=message, code=number)
        raise getattr(error, "exc_type", oracledb.DatabaseError)(error)  # SQLAlchemy detects it from 2.1 on

    engine = create_engine("oracle+oracledb://", creator=fail)
    return taken_for(adapter_for(engine.dialect), raised(engine.connect))


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        pytest.param((54, 60, 4020, 4021, 8177, 30006), "transient", id="transient"),
        pytest.param((28, 1012, 2396, 3113, 3114, 3135, 12537, 12547), "outage", id="closed"),
        pytest.param((1033, 1034, 1089, 1090, 1092, 1109, 12571), "outage", id="maintenance"),
        pytest.param((12170, 12505, 12514, 12516, 12518, 12519, 12520, 12528, 12541), "outage", id="listener"),
        pytest.param((18, 20, 257, 1653, 1654, 30036, 16000), "outage", id="read-only or full"),
        # unique, foreign key, syntax, no such table, unknown number, raised by the application
        pytest.param((1, 2292, 900, 942, 1722, 20001), "neither", id="its own"),
    ],
)
def test_error_numbers_are_classified(numbers: tuple[int, ...], kind: str) -> None:
    assert {number: told(f"ORA-{number:05}: as the test has it", number) for number in numbers} == dict.fromkeys(
        numbers, kind
    )


def test_a_call_timeout_is_not_an_outage() -> None:
    assert told("DPY-4024: call timeout of 1000 ms exceeded") == "neither"


@pytest.mark.parametrize("code", ["DPY-1001", "DPY-4011", "DPY-6000", "DPY-6001", "DPY-6003", "DPY-6005"])
def test_driver_codes_are_classified(code: str) -> None:
    assert told(f"{code}: as the test has it") == "outage"
