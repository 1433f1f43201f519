"""Runs `python -m bench` in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from bench.__main__ import application


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(application, [*map(str, arguments)])
