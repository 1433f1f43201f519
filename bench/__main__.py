"""Runs ``python -m bench``."""

from __future__ import annotations

import typer

from .command import bench

application = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_show_locals=False)
application.command()(bench)

if __name__ == "__main__":
    application()
