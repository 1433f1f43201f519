"""When a recurring task is due: intervals and cron expressions, as they are stored."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .._support.checks import duration
from .._support.exc import ArgumentError

Missed: TypeAlias = Literal["skip", "once", "all"]

_INTERVAL = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_FIELDS = 5
_SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Every:
    """An interval, at least a second.  Stored as an ISO 8601 duration: ``str(Every(timedelta(hours=1)))``."""

    interval: timedelta
    """The time from one run to the next."""

    def __post_init__(self) -> None:
        if duration("interval", self.interval) < _SHORTEST:
            raise ArgumentError(f"interval={self.interval!r}: give at least a second")

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
    """Five fields: minute, hour, day of the month, month and day of the week."""
    timezone: str = "UTC"
    """A name of the IANA database."""

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
        zone = _zone(self.timezone)
        try:
            times = CronSim(self.expression, moment.astimezone(zone))
            # in the hour that comes twice it goes by the clock on the wall, and begins with what is past already
            return next(time for time in (each.astimezone(UTC) for each in times) if time > moment)
        except (CronSimError, ValueError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"{self.expression!r} is not a cron expression: give five fields (minute, hour, day of the month,"
                " month, day of the week), as in '0 3 * * mon-fri'"
            ) from error
        except StopIteration:
            raise ArgumentError(
                f"the cron expression {self.expression!r} never comes due: there is no such date"
            ) from None

    def first_after(self, planned: datetime, now: datetime) -> datetime:
        """Return the first planned time later than both ``planned`` and ``now``; all in UTC."""
        return self.after(max(planned, now))


Schedule: TypeAlias = Every | Cron


def parse(schedule: Schedule | str) -> Schedule:
    """Return the schedule that a text stands for; raises :class:`.ArgumentError` if it stands for none."""
    if isinstance(schedule, (Every, Cron)):
        return schedule
    if isinstance(schedule, str):
        return _parse(schedule)
    raise ArgumentError(_NOT_A_SCHEDULE.format(schedule))


_NOT_A_SCHEDULE = (
    "{!r} is not a schedule: give Every(timedelta(...)) or Cron('0 3 * * *', 'Europe/Berlin'), or the text of one, such"
    " as 'PT15M' or '0 3 * * * Europe/Berlin'"
)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Schedule:
    interval = _INTERVAL.fullmatch(text)
    if interval is not None:
        parts = {unit: float(number) for unit, number in interval.groupdict().items() if number}
        with suppress(OverflowError):
            return Every(timedelta(**parts))
    fields = text.split()
    if len(fields) in (_FIELDS, _FIELDS + 1):
        return Cron(" ".join(fields[:_FIELDS]), *fields[_FIELDS:])
    raise ArgumentError(_NOT_A_SCHEDULE.format(text))


def text_of(schedule: Schedule | str) -> str:
    """Return the text that is stored for a schedule; raises :class:`.ArgumentError` for what is not one."""
    parse(schedule)
    return str(schedule)


def is_same(stored: str, declared: str) -> bool:
    """Tell whether two stored schedules mean the same, however they are spelled."""
    try:
        return parse(stored) == parse(declared)
    except ArgumentError:  # other programs may have stored anything
        return False


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, AttributeError, OSError) as error:
        raise ArgumentError(
            f"{name!r} is not a time zone: give a name of the IANA database, such as 'Europe/Berlin' or 'UTC'"
        ) from error


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
