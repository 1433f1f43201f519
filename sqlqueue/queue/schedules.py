"""Schedules of recurring tasks: intervals and cron expressions, and their stored text."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.texts import logger_of

Missed: TypeAlias = Literal["skip", "once", "all"]

_INTERVAL = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_FIELDS = 5
_NOT_CRON = (
    "{!r} is not a cron expression: give five fields (minute, hour, day of the month, month, day of the week), as in"
    " '0 3 * * mon-fri'"
)
logger = logger_of("sqlqueue")
_SHORTEST = timedelta(seconds=1)


class UnknownHereError(ArgumentError):
    """A schedule that this host cannot evaluate, because it lacks a package or time zone that other hosts may have."""


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule with a fixed interval of at least a second.  Raises :class:`.ArgumentError` for other intervals.

    Stored as an ISO 8601 duration: ``str(Every(timedelta(hours=1)))``.
    """

    interval: timedelta
    """The time from one run to the next."""

    def __post_init__(self) -> None:
        if duration("interval", self.interval) < _SHORTEST:
            raise ArgumentError(f"interval={self.interval!r}: give at least one second")

    def __str__(self) -> str:
        seconds = f"{self.interval.total_seconds() % 86400:f}".rstrip("0").rstrip(".")
        return f"P{self.interval.days}DT{seconds}S" if self.interval.days else f"PT{seconds}S"

    def after(self, moment: datetime) -> datetime:
        """Return the planned time that follows ``moment``, which is a planned time itself."""
        return moment + self.interval

    def first_after(self, planned: datetime, now: datetime) -> datetime:
        """Return the first of the times planned after ``planned`` that is later than ``now``."""
        periods = max((now - planned) // self.interval, 0) + 1
        return planned + periods * self.interval


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule given by a cron expression of five fields, in a time zone.  Stored as ``"0 3 * * * Europe/Berlin"``.

    Needs ``sqlalchemy-queue[cron]``.  A fixed time in the hour that daylight saving time skips runs right after that
    hour; one in the repeated hour runs once.  Raises :class:`.ArgumentError` for bad expressions and time zones.
    """

    expression: str
    """Five fields: minute, hour, day of the month, month and day of the week."""
    timezone: str = "UTC"
    """A time zone's name in the IANA database."""

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or len(self.expression.split()) != _FIELDS:  # cronsim knows seconds
            raise ArgumentError(_NOT_CRON.format(self.expression))
        self.after(datetime.now(UTC))

    def __str__(self) -> str:
        return f"{self.expression} {self.timezone}"

    def after(self, moment: datetime) -> datetime:
        """Return the first planned time later than ``moment``; both in UTC."""
        try:
            from cronsim import CronSim, CronSimError  # noqa: PLC0415
        except ImportError as error:
            raise UnknownHereError("cron expressions need cronsim: pip install 'sqlalchemy-queue[cron]'") from error
        zone = _zone(self.timezone)
        try:
            times = CronSim(self.expression, moment.astimezone(zone))
            # in the repeated hour cronsim uses local time, and begins with times in the past
            return next(time for time in (each.astimezone(UTC) for each in times) if time > moment)
        except (CronSimError, ValueError, TypeError, AttributeError) as error:
            raise ArgumentError(_NOT_CRON.format(self.expression)) from error
        except StopIteration:
            raise ArgumentError(
                f"the cron expression {self.expression!r} is never due: there is no such date"
            ) from None

    def first_after(self, planned: datetime, now: datetime) -> datetime:
        """Return the first planned time later than both ``planned`` and ``now``; all in UTC."""
        return self.after(max(planned, now))


Schedule: TypeAlias = Every | Cron


def parse(schedule: Schedule | str) -> Schedule:
    """Return the schedule of a stored text, or ``schedule`` itself.  Raises :class:`.ArgumentError` for anything
    else."""
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


unknown_here: dict[str, str] = {}
"""The stored schedules that this process has met and cannot evaluate, and why."""


def is_known_here(text: str) -> bool:
    """Return whether this host can evaluate a stored schedule, or nobody can: a text that is no schedule is known to be
    none."""
    try:
        _parse(text)
    except UnknownHereError as error:
        if text not in unknown_here:
            unknown_here[text] = str(error)
            logger.warning("tasks with the schedule %r are left to workers on other hosts: %s", text, error)
        return False
    except ArgumentError:
        pass
    unknown_here.pop(text, None)
    return True


def lacks_zones() -> bool:
    """Return whether this host can evaluate no cron expression in a time zone."""
    try:
        Cron("0 0 * * *", "Europe/London")
    except UnknownHereError:
        return True
    return False


def text_of(schedule: Schedule | str) -> str:
    """Return the stored text of a schedule.  Raises :class:`.ArgumentError` if it is not one."""
    parse(schedule)
    return str(schedule)


def is_same(stored: str, declared: str) -> bool:
    """Return whether two stored schedules are equal, even if spelled differently."""
    try:
        return parse(stored) == parse(declared)
    except ArgumentError:  # other programs may have stored anything
        return False


def zone_of(text: str) -> tzinfo:
    """Return the time zone of a stored schedule: UTC for an interval, and for what this host cannot evaluate."""
    try:
        schedule = parse(text)
    except ArgumentError:
        return UTC
    return _zone(schedule.timezone) if isinstance(schedule, Cron) else UTC


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise UnknownHereError(
            f"{name!r} is not a time zone that this host knows: give a name from the IANA database, such as"
            " 'Europe/Berlin' or 'UTC', or update the host's: pip install --upgrade tzdata"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{name!r} is not a time zone: give a name from the IANA database, such as 'Europe/Berlin' or 'UTC'"
        ) from error


def next_run(text: str, planned: datetime, now: datetime, *, drift: bool, missed: Missed) -> datetime:
    """Return the due time of the run after the one that was planned for ``planned`` and ends ``now``."""
    schedule = parse(text)
    if drift and isinstance(schedule, Every):
        return schedule.after(now)
    planned = min(planned, now)  # the clocks of other programs that insert may be ahead
    return schedule.after(planned) if missed == "all" else schedule.first_after(planned, now)


def is_missed(text: str, planned: datetime, now: datetime) -> bool:
    """Return whether the planned time that follows ``planned`` has also been reached."""
    return parse(text).after(planned) <= now
