"""Parsers of typer options."""

from __future__ import annotations

from datetime import timedelta

from .._support.exc import ArgumentError
from ..operations import text_values
from ._output import refusal


def age(text: str) -> timedelta:
    """Parse a duration such as ``90s``, ``15m``, ``2h``, ``7d`` or ``1h30m``; anything else is a usage error."""
    try:
        return text_values.age(text)
    except ArgumentError as error:
        raise refusal(str(error)) from error
