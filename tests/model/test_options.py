"""Queue options and their validation; no database."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import ArgumentError, ExponentialBackoff, HistoryOptions, QueueOptions, Worker
from sqlqueue.dashboard import Dashboard
from sqlqueue.sqltasks import SQLTaskDatabase


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", timedelta(0)),
        ("lease", -timedelta(seconds=1)),
        ("lease", 300),
        ("max_attempts", 0),
        ("max_attempts", "3"),
        ("on_complete", "remove"),
        ("retention", -timedelta(days=1)),
        ("retention", 7),
        ("order_by", ["id"]),
        ("order_by", "id"),
        ("stages", ["fetch"]),
        ("stages", ("fetch", "fetch")),
        ("stages", ("fetch", "")),
        ("retry", timedelta(seconds=5)),
        ("columns", ["status"]),
        ("fair", 7),
        ("fair", ""),
        ("fair", True),
        ("weight", {"a": 2}),  # without fair=
        ("sequential", 7),
        ("sequential", True),
        ("continue_on_discarded", "no"),
        ("continue_on_discarded", True),  # without sequential=
    ],
)
def test_invalid_options_are_rejected(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        QueueOptions(**{name: value})


@pytest.mark.parametrize("option", [{"order_by": ("id",)}, {"fair": "tenant"}, {"stages": ("fetch",)}])
def test_an_order_by_key_excludes_others(option: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}=.* sequential="):
        QueueOptions(sequential="account", **option)


@pytest.mark.parametrize("weight", [0, -1, 0.01, 2_000, True, "2"])
def test_invalid_weights_are_rejected(weight: Any) -> None:
    with pytest.raises(ArgumentError, match="weight of 'a'"):
        QueueOptions(fair="tenant", weight={"a": weight})
    options = QueueOptions(fair="tenant", weight=lambda key: weight)
    with pytest.raises(ArgumentError, match="weight of 'a'"):
        options.weight_of("a")
    with pytest.raises(ArgumentError, match="weight="):
        QueueOptions(fair="tenant", weight=weight)


@pytest.mark.parametrize(
    "arguments", [{"base": 15}, {"base": -timedelta(1)}, {"factor": 0.5}, {"jitter": 2}, {"cap": 60}]
)
def test_invalid_backoffs_are_rejected(arguments: Any) -> None:
    with pytest.raises(ArgumentError):
        ExponentialBackoff(**arguments)


def test_delays_of_a_backoff() -> None:
    backoff = ExponentialBackoff(timedelta(seconds=15), factor=4, cap=timedelta(hours=1), jitter=0)
    assert [backoff(attempt).total_seconds() for attempt in (1, 2, 3, 4, 5, 6, 9999)] == [
        15,
        60,
        240,
        960,
        3600,
        3600,
        3600,
    ]
    shaken = {ExponentialBackoff(timedelta(seconds=10), jitter=0.1)(1).total_seconds() for _ in range(200)}
    assert 9 <= min(shaken) < 9.5
    assert 10.5 < max(shaken) <= 11


@pytest.mark.parametrize(
    "documented", [QueueOptions, HistoryOptions, Worker, Worker.handler, SQLTaskDatabase, Dashboard]
)
def test_each_option_is_an_item_of_the_documentation(documented: Any) -> None:
    options = [name for name in inspect.signature(documented).parameters if name not in {"self", "entity", "where"}]
    items = re.findall(r"^- (.*?):", inspect.getdoc(documented) or "", re.MULTILINE)
    assert re.findall(r"``(\w+)``", " ".join(items)) == options
