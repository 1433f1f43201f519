"""Charts: what they draw of buckets, with which axes, and which values they tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqlqueue import Bucket, Durations
from sqlqueue.dashboard.charts import PERIODS, Ended, Queues, counts_chart, durations_chart

HOUR, DAY, WEEK = PERIODS
START = datetime(2026, 11, 26, 13, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def buckets(number: int = 30, **given: Bucket) -> list[Bucket]:
    """Return buckets of two minutes; ``given``: some that are not empty, by number."""
    return [given.get(f"b{n}", Bucket(START + n * 2 * MINUTE, attempts=True)) for n in range(number)]


def bucket(n: int, **values: object) -> Bucket:
    return Bucket(START + n * 2 * MINUTE, **{"attempts": True, **values})


def waited(*seconds: float) -> Durations:
    times = [timedelta(seconds=each) for each in seconds]
    return Durations(len(times), times[0], times[0], times[-1])


def of_one(*some: Bucket) -> Queues:
    return {"Email": buckets(**{f"b{(each.start - START) // (2 * MINUTE)}": each for each in some})}


def test_a_chart_with_one_point_shows_it() -> None:
    queues = of_one(bucket(5, waiting_time=waited(90)))
    chart = durations_chart("Times", {"waiting": lambda each: each.waiting_time}, queues, HOUR)
    (column,) = [each for each in chart.columns if each.text]
    assert (column.time, column.text) == ("13:20 to 13:22", "waiting 1 min")
    assert [(dot.kind, dot.y) for dot in column.dots] == [("waiting", 25)]
    assert not list(chart.lines)
    assert [(tick.at, tick.text) for tick in chart.values] == [(100, "0"), (50, "1 min"), (0, "2 min")]


def test_durations_are_those_of_the_slowest_queue_and_joined_by_lines() -> None:
    queues = {
        "Email": buckets(2, b0=bucket(0, waiting_time=waited(1)), b1=bucket(1, waiting_time=waited(2))),
        "Order": buckets(2, b1=bucket(1, waiting_time=waited(1, 4))),
    }
    chart = durations_chart("Times", {"waiting": lambda each: each.waiting_time}, queues, HOUR)
    assert [each.text for each in chart.columns] == ["waiting 1.0 s (Email)", "waiting 4.0 s (Order)"]
    (line,) = chart.lines
    assert tuple(line) == ("waiting", 25, 75, 75, 0)


def test_what_ended_is_stacked_and_counted_once() -> None:
    queues = {
        "Email": buckets(2, b0=bucket(0, completed=3, failed=1), b1=bucket(1, completed=10)),
        "Order": buckets(2, b0=bucket(0, cancelled=2)),
    }
    chart = counts_chart("Ended attempts", queues, HOUR)
    assert [each.text for each in chart.columns] == ["3 completed, 1 failed, 2 cancelled", "10 completed"]
    assert [tuple(bar) for bar in chart.columns[0].bars] == [
        ("completed", 70, 30),
        ("failed", 60, 10),
        ("cancelled", 40, 20),
    ]
    assert "13 completed, 1 failed, 2 cancelled; at most 10 in 2 min" in chart.summary
    assert Ended.of(each for some in queues.values() for each in some).number() == "16"
    assert [tick.text for tick in chart.values] == ["0", "5", "10"]


@pytest.mark.parametrize(
    ("period", "times"),
    [
        (HOUR, {"13:15": 8.33, "13:30": 33.33, "13:45": 58.33, "14:00": 83.33}),
        (DAY, {"18:00": 20.14, "00:00": 45.14, "06:00": 70.14, "12:00": 95.14}),
        (WEEK, {"Fri": 6.45, "Sat": 20.73, "Sun": 35.02, "Mon": 49.31, "Tue": 63.59, "Wed": 77.88, "Thu": 92.16}),
    ],
)
def test_the_axis_of_time_has_round_times(period: object, times: dict[str, float]) -> None:
    number = period.since // period.bucket
    queues = {"Email": [Bucket(START + n * period.bucket) for n in range(number)]}
    assert {tick.text: tick.at for tick in counts_chart("Ended", queues, period).times} == times


@pytest.mark.parametrize(
    ("most", "values"),
    [(1, "0 1"), (4, "0 1 2 3 4"), (5, "0 2 4 6"), (17, "0 5 10 15 20"), (9_001, "0 5,000 10,000")],
)
def test_the_axis_of_counts_has_round_numbers(most: int, values: str) -> None:
    chart = counts_chart("Ended", of_one(bucket(0, completed=most)), HOUR)
    assert " ".join(tick.text for tick in chart.values) == values


@pytest.mark.parametrize(
    ("seconds", "values"),
    [
        (0.0005, "0 1 ms"),
        (1.7, "0 500 ms 1 s 1.5 s 2 s"),
        (50, "0 15 s 30 s 45 s 1 min"),
        (70, "0 1 min 2 min"),
        (5_000, "0 30 min 1 h 1 h 30 min"),
        (400_000, "0 2 d 4 d 6 d"),
    ],
)
def test_the_axis_of_durations_has_times_that_people_count_in(seconds: float, values: str) -> None:
    queues = of_one(bucket(0, run_time=waited(seconds)))
    chart = durations_chart("Times", {"running": lambda each: each.run_time}, queues, HOUR)
    assert " ".join(tick.text for tick in chart.values) == values


def test_what_was_not_read_is_marked() -> None:
    queues = of_one(bucket(0, completed=3, capped=True), bucket(1, completed=4))
    chart = counts_chart("Ended", queues, HOUR)
    assert [each.is_partial for each in chart.columns[:3]] == [True, False, False]
    assert [each.text for each in chart.columns[:2]] == ["3+ completed", "4 completed"]
    assert Ended.of(queues["Email"]).number() == "7+"


def test_nothing_and_tasks_beside_attempts() -> None:
    assert counts_chart("Ended", {}, HOUR).is_empty
    assert counts_chart("Ended", of_one(), HOUR).is_empty
    assert not counts_chart("Ended", of_one(bucket(1, failed=1)), HOUR).is_empty
    assert Ended.of([Bucket(START), bucket(1)]).unit == "attempts and tasks"


def test_queues_whose_waiting_times_are_not_known_are_named() -> None:
    queues = {
        "Email": buckets(2, b0=bucket(0, completed=3), b1=bucket(1, completed=1, waiting_time=waited(1))),
        "Order": buckets(2, b1=bucket(1, completed=2)),
        "Page": buckets(2, b1=bucket(1, failed=2)),
    }
    assert durations_chart("Times", {"waiting": lambda each: each.waiting_time}, queues, HOUR).unknown == ["Order"]
