"""The templates, which escape all values, and the functions that format values for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .._support.texts import key_text, readable
from ..operations import QueueStats

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60
_SHORT = 120
MARKS: Mapping[str, str] = {
    "available": "○",
    "scheduled": "◷",
    "retryable": "↻",
    "running": "▶",
    "completed": "✓",
    "cancelled": "⊘",
    "discarded": "✕",
    "abandoned": "‼",
    "paused": "Ⅱ",
    "failed": "✕",
    "crashed": "‼",
    "released": "○",
    "snoozed": "◷",
}
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
templates.filters.update(span=span, moment=moment, first_line=first_line, badge=badge, key=key_text)
templates.globals.update(figure=figure)
