"""When recurring tasks are due; no database."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlqueue import ArgumentError, Cron, Every
from sqlqueue.queue.schedules import is_missed, is_same, next_run, parse

HOUR = timedelta(hours=1)
BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    """Return a time in 2031, in UTC: clocks go forward on March 30 and back on October 26, both at 1:00."""
    return datetime.strptime(f"2031 {text}", "%Y %m-%d %H:%M").replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "since", "times"),
    [
        ("30 2 * * *", "03-29 00:00", ["03-29 01:30", "03-30 01:00", "03-31 00:30"]),  # a gap: right after it
        ("15,45 2 * * *", "03-29 12:00", ["03-30 01:00", "03-31 00:15"]),
        ("*/30 * * * *", "03-30 00:10", ["03-30 00:30", "03-30 01:00", "03-30 01:30"]),
        ("30 2 * * *", "10-25 12:00", ["10-26 00:30", "10-27 01:30"]),  # an hour that comes twice: once
        ("30 2 * * *", "10-26 01:10", ["10-27 01:30"]),  # also from within the repeated hour
        ("0 * * * *", "10-25 23:30", ["10-26 00:00", "10-26 01:00", "10-26 02:00"]),  # twice
    ],
)
def test_cron_uses_local_time(expression: str, since: str, times: list[str]) -> None:
    schedule, moment = Cron(expression, BERLIN), at(since)
    for expected in map(at, times):
        moment = schedule.after(moment)
        assert (moment, moment.tzinfo) == (expected, UTC)


@pytest.mark.parametrize(
    "schedule", [Every(HOUR), Every(timedelta(days=400, seconds=0.5, minutes=90)), Cron("0 3 * * 1", BERLIN)]
)
def test_stored_schedules_are_read_back_equal(schedule: Any) -> None:
    assert parse(str(schedule)) == schedule


PLANNED, DURING, LATE = at("05-01 10:00"), at("05-01 10:20"), at("05-01 13:30")


@pytest.mark.parametrize(
    ("text", "now", "arguments", "expected"),
    [
        ("PT1H", DURING, {}, "05-01 11:00"),
        ("PT1H", LATE, {}, "05-01 14:00"),
        ("PT1H", LATE, {"missed": "skip"}, "05-01 14:00"),
        ("PT1H", LATE, {"missed": "all"}, "05-01 11:00"),
        ("PT1H", LATE, {"drift": True}, "05-01 14:30"),
        ("PT1H", LATE, {"drift": True, "missed": "all"}, "05-01 14:30"),
        ("PT1H", at("05-01 14:00"), {}, "05-01 15:00"),  # later than now, not equal to it
        ("PT1H", at("05-01 09:00"), {}, "05-01 10:00"),  # planned by a clock that was ahead
        ("0 * * * *", LATE, {}, "05-01 14:00"),
        ("0 * * * *", LATE, {"missed": "all"}, "05-01 11:00"),
        ("0 * * * *", LATE, {"drift": True}, "05-01 14:00"),
    ],
)
def test_the_next_run_is_after_now(text: str, now: datetime, arguments: dict[str, Any], expected: str) -> None:
    assert next_run(text, PLANNED, now, **{"drift": False, "missed": "once", **arguments}) == at(expected)


def test_a_run_is_missed_once_the_next_is_due() -> None:
    assert [is_missed("PT1H", PLANNED, now) for now in (DURING, at("05-01 11:00"), LATE)] == [False, True, True]


@pytest.mark.parametrize(
    "make",
    [
        *(lambda text=text: parse(text) for text in ("", "P", "PT", "PT0.5S", "P99999999999D", "1h", "* * * *", None)),
        *(lambda text=text: parse(text) for text in ("61 * * * *", "0 0 30 2 *")),
        lambda: parse(HOUR),  # type: ignore[arg-type]
        lambda: Every(3600),  # type: ignore[arg-type]
        lambda: Every(-HOUR),
        lambda: Cron(3),  # type: ignore[arg-type]
    ],
)
def test_invalid_schedules(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"schedule|interval|cron"):
        make()


@pytest.mark.parametrize("zone", ["Nowhere", "../x", "", "Europe", 2, "Europe/Berlin\0"])
def test_a_bad_time_zone_is_distinguished_from_a_bad_expression(zone: Any) -> None:
    with pytest.raises(ArgumentError, match="not a time zone") as raised:
        Cron("0 3 * * *", zone)
    assert "cron expression" not in str(raised.value)
    with pytest.raises(ArgumentError, match="not a cron expression") as raised:
        Cron("0 3 * * mun", "Europe/Berlin")
    assert "time zone" not in str(raised.value)


def test_a_schedule_equals_its_text() -> None:
    assert parse(Every(HOUR)) == parse("PT1H")
    assert is_same("PT1H", "PT60M")
    assert not is_same("whatever another program wrote", "PT1H")


def test_without_cronsim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ArgumentError, match=r"pip install 'sqlalchemy-queue\[cron\]'"):
        Cron("0 3 * * *")
    assert parse("PT1H") == Every(HOUR)
