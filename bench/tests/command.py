"""Runs `python -m bench` in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from sqlalchemy import URL
from typer.testing import CliRunner

from bench.__main__ import application


def bench(url: URL | str, *arguments: object) -> Result:
    shown = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    return CliRunner().invoke(application, ["--url", shown, *map(str, arguments)])


def reported(url: URL | str, *arguments: object) -> dict[str, Any]:
    """Return the report, which a run that succeeds writes as JSON."""
    result = bench(url, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report
