"""Runs `sqlqueue bench` in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from sqlqueue.cli import application


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(application(), ["bench", *map(str, arguments)])
