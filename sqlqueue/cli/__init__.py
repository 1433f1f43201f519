"""The command line ``sqlqueue``, which needs the extra ``cli``.

One module for each group of commands; modules with an underscore are shared by several.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the program ``sqlqueue``.  Exits with a message if the extra ``cli`` is not installed."""
    if any(find_spec(name) is None for name in ("rich", "typer")):
        extra = "pip install 'sqlalchemy-queue[cli]', the distribution of sqlqueue"
        sys.exit(f"The sqlqueue command line needs an extra: {extra}")
    application()()


def application() -> typer.Typer:
    """Return the typer application with all commands.  Their dependencies are imported here, not with this module."""
    from ._application import make_application  # noqa: PLC0415

    return make_application()
