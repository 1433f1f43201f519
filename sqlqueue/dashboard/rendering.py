"""The templates, which escape all values, and the functions that format values for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .._support.texts import key_text, readable
from ..operations import QueueStats, attempt_text
from ..queue.options import FINAL, Status
from ..queue.schedules import Every, parse
from ..sql import NEVER

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60
_SHORT = 120
_STATES_BY_MARK = {
    "○": ("available", "released", "unfinished"),
    "◷": ("scheduled", "snoozed"),
    "↻": ("retryable",),
    "▶": ("running", "live"),
    "✓": ("completed", "ended", "open"),
    "⊘": ("cancelled",),
    "✕": ("discarded", "failed"),
    "‼": ("abandoned", "crashed", "stalled", "silent"),
    "Ⅱ": ("paused",),
    "◌": ("waiting", "closed"),
    "⊖": ("skipped",),
}
MARKS: Mapping[str, str] = {state: mark for mark, states in _STATES_BY_MARK.items() for state in states}
"""A shape for each state, so that it is not shown by colour alone."""


def shown(value: object) -> object:
    """Return a value as a template prints it: invisible and bidirectional control characters are escaped."""
    return value if isinstance(value, Markup) else readable("" if value is None else value, lines=True)


def figure(stats: QueueStats, name: str, number: int | None = None) -> str:
    """Return a number of ``stats`` with separators, and with a + if it is a lower bound."""
    if number is None:
        number = stats.counts[name] if name in stats.counts else getattr(stats, name)  # type: ignore[index]
    return f"{number:,}{'+' if name in stats.capped else ''}"


def span(time: timedelta | float | None) -> str:
    """Return a duration in its largest one or two units: ``7 ms``, ``1.5 s``, ``3 min``, ``2 h 5 min``, ``4 d``."""
    if time is None:
        return "-"
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min"
    if seconds < _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "min")
    return _two(seconds, _DAY, "d", _HOUR, "h")


def _two(seconds: float, large: int, of_large: str, small: int, of_small: str) -> str:
    whole, rest = divmod(int(seconds), large)
    return f"{whole} {of_large} {rest // small} {of_small}" if rest >= small else f"{whole} {of_large}"


def moment(value: datetime | str | None) -> Markup:
    """Return a time in UTC, for people and for programs; or the text that says why it cannot be read."""
    if not isinstance(value, datetime):
        return Markup("{}").format("-" if value is None else readable(value))
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), f"{value:%Y-%m-%d %H:%M:%S}Z")


def entered(value: datetime | str) -> str | None:
    """Return a time as a field of a form contains it, in UTC."""
    return f"{value:%Y-%m-%dT%H:%M:%S}" if isinstance(value, datetime) else None


def ago(value: datetime | str | None, now: datetime) -> Markup:
    """Return a time relative to ``now``; or the text that says why it cannot be read."""
    if not isinstance(value, datetime):
        return moment(value)
    if value >= NEVER:  # of rows from before the table became a queue
        return Markup("never")
    distance = _distance(value, now)
    is_now = abs(now - value) < timedelta(seconds=1)
    return _titled(value, "now" if is_now else f"{distance} ago" if value <= now else f"in {distance}")


def since(own: Mapping[str, Any], now: datetime) -> Markup:
    """Return how long a task has been in its state, when it will leave it, or when it ended; ``own``: the queue's
    columns, by role."""
    status, due, claimed, ended = (own[role] for role in ("status", "available_at", "claimed_at", "finished_at"))
    is_due = isinstance(due, datetime) and due <= now
    if status == Status.WAITING and isinstance(due, datetime) and due >= NEVER:
        return Markup("")
    if status in FINAL:
        return ago(ended, now) if ended is not None else Markup("")
    if status == Status.RUNNING:
        taken = _titled(claimed, f"for {_distance(claimed, now)}") if isinstance(claimed, datetime) else Markup("")
        ended = (
            Markup(' <span class="bad">abandoned: its lease ended {}</span>').format(ago(due, now)) if is_due else ""
        )
        return taken + ended
    if status == Status.AVAILABLE and is_due:
        return _titled(due, f"for {_distance(due, now)}")
    return Markup("due {}").format(ago(due, now))


def _distance(value: datetime, now: datetime) -> str:
    seconds = abs(now - value).total_seconds() // 1
    return f"{seconds:.0f} s" if seconds < _MINUTE else span(seconds)


def _titled(value: datetime, text: str) -> Markup:
    at = Markup('<time datetime="{}" title="{}">{}</time>')
    return at.format(value.isoformat(), f"{value:%Y-%m-%d %H:%M:%S} UTC", text)


def in_zone(value: datetime, zone: tzinfo) -> Markup:
    """Return a time in a time zone, and in UTC if that is another."""
    text = f"{value.astimezone(zone):%a %d %b %Y %H:%M %Z}"
    return _titled(value, text) if zone in (UTC, ZoneInfo("UTC")) else _titled(value, f"{text}, {value:%H:%M} UTC")


@lru_cache(maxsize=1024)
def in_words(schedule: str) -> str:
    """Return a stored schedule in words, or as it is if it cannot be told."""
    try:
        found = parse(schedule)
        if isinstance(found, Every):
            return f"Every {span(found.interval)}"
        from cron_descriptor import Options, get_description  # noqa: PLC0415

        options = Options()
        options.locale_code, options.use_24hour_time_format = "en_US", True
        return f"{get_description(found.expression, options)} ({found.timezone})"
    except Exception:  # another program may have stored anything, or this host may lack a time zone
        return schedule


def told(value: object, indent: int | None = None) -> str:
    """Return a value of a column as text: structures as JSON, others as people write them; never as Python code."""
    plain = _plain(value)
    if not isinstance(plain, (Mapping, list, tuple)):
        return str(plain)
    try:
        return json.dumps(plain, ensure_ascii=False, indent=indent, default=_plain)
    except (TypeError, ValueError):  # e.g. keys that are not text
        return str(plain)


def _plain(value: Any) -> Any:
    """Return a value that is text, or that JSON can contain."""
    plain: Any = value
    dump = getattr(value, "model_dump", None)  # of Pydantic's models
    if isinstance(value, bool):
        plain = str(value).lower()
    elif isinstance(value, Enum):
        plain = str(value.value)
    elif isinstance(value, bytes):
        plain = f"0x{value.hex()}"
    elif isinstance(value, AbstractSet):
        plain = sorted(map(told, value))
    elif is_dataclass(value) and not isinstance(value, type):
        plain = asdict(value)
    elif callable(dump):
        plain = dump(mode="json")
    elif not isinstance(value, (Mapping, list, tuple)):
        plain = "" if value is None else str(value)
    return plain


def heading(role: str) -> str:
    """Return the heading of one of the queue's columns."""
    return "Function" if role == "task" else role.replace("_", " ").capitalize()


def first_line(value: str | None) -> str:
    """Return the beginning of an error."""
    line = (value or "").partition("\n")[0]
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


def badge(state: object) -> Markup:
    """Return a state in words, with its shape and colour."""
    text = str(state)
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        text if text in MARKS else "other", MARKS.get(text, "•"), shown(text)
    )


templates = Environment(
    loader=PackageLoader("sqlqueue.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=shown,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(span=span, moment=moment, ago=ago, since=since, in_zone=in_zone, told=told)
templates.filters.update(first_line=first_line, entered=entered, badge=badge, in_words=in_words, key=key_text)
templates.globals.update(figure=figure, heading=heading, attempt=attempt_text, marks=MARKS)
