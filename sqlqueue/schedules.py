"""When a recurring task is due: intervals and cron expressions, as they are stored."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

from .checks import duration
from .exc import ArgumentError

Missed: TypeAlias = Literal["skip", "once", "all"]

_INTERVAL = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_FIELDS = 5
_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Every:
    """An interval, at least a second.  Stored as an ISO 8601 duration: ``str(Every(timedelta(hours=1)))``."""

    interval: timedelta

    def __post_init__(self) -> None:
        if not _SHORTEST <= duration("interval", self.interval) <= _LONGEST:
            raise ArgumentError(f"interval={self.interval!r}: at least a second, at most a hundred years")

    def __str__(self) -> str:
        seconds = f"{self.interval.total_seconds() % 86400:f}".rstrip("0").rstrip(".")
        return f"P{self.interval.days}DT{seconds}S" if self.interval.days else f"PT{seconds}S"

    def after(self, moment: datetime) -> datetime:
        """The planned time that follows the planned time ``moment``."""
        return moment + self.interval

    def first_after(self, planned: datetime, now: datetime) -> datetime:
        """Of the times planned after ``planned``, the first that is later than ``now``."""
        periods = max((now - planned) // self.interval, 0) + 1
        return planned + periods * self.interval


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, in a time zone.  Stored as both: ``"0 3 * * * Europe/Berlin"``.

    Needs ``sqlalchemy-queue[cron]``.  In the hour that a change of the clocks leaves out, a fixed time runs right
    after it; in the hour that comes twice, it runs once.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        self.after(datetime.now(UTC))

    def __str__(self) -> str:
        return f"{self.expression} {self.timezone}"

    def after(self, moment: datetime) -> datetime:
        """The first planned time later than ``moment``; both in UTC."""
        try:
            from cronsim import CronSim, CronSimError  # noqa: PLC0415
        except ImportError as error:
            raise ArgumentError("cron expressions take cronsim: pip install 'sqlalchemy-queue[cron]'") from error
        try:
            times = CronSim(self.expression, moment.astimezone(ZoneInfo(self.timezone)))
            # in the hour that comes twice it goes by the clock on the wall, and begins with what is past already
            return next(time for time in (each.astimezone(UTC) for each in times) if time > moment)
        except (CronSimError, ValueError, TypeError, AttributeError, OSError, KeyError) as error:
            raise ArgumentError(f"{self}: no cron expression and time zone, as in '0 3 * * * Europe/Berlin'") from error
        except StopIteration:
            raise ArgumentError(f"{self}: there is no such time") from None

    def first_after(self, planned: datetime, now: datetime) -> datetime:
        return self.after(max(planned, now))


Schedule: TypeAlias = Every | Cron


@lru_cache(maxsize=1024)
def parse(text: str) -> Schedule:
    """What a stored schedule says; :class:`.ArgumentError` if it says nothing."""
    interval = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    if interval is not None:
        parts = {unit: float(number) for unit, number in interval.groupdict().items() if number}
        with suppress(OverflowError):
            return Every(timedelta(**parts))
    fields = text.split() if isinstance(text, str) else ()
    if len(fields) in (_FIELDS, _FIELDS + 1):
        return Cron(" ".join(fields[:_FIELDS]), *fields[_FIELDS:])
    raise ArgumentError(
        f"{text!r} is no schedule: give str(Every(timedelta(...))), or five cron fields and a time zone,"
        " as in '0 3 * * * Europe/Berlin'"
    )


def next_run(text: str, planned: datetime, now: datetime, *, drift: bool, missed: Missed) -> datetime:
    """When the run after the one that was planned for ``planned`` and ends ``now`` is due."""
    schedule = parse(text)
    if drift and isinstance(schedule, Every):
        return schedule.after(now)
    planned = min(planned, now)  # other programs insert by a clock that may be ahead
    return schedule.after(planned) if missed == "all" else schedule.first_after(planned, now)


def is_missed(text: str, planned: datetime, now: datetime) -> bool:
    """Whether, of what was planned for ``planned``, the next time has come as well."""
    return parse(text).after(planned) <= now
