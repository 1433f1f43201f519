"""Virtual environments with the latest releases of other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .contenders import Contender, PeerError

_PATIENCE = 600
"""Seconds for one command."""


def interpreter(contender: Contender, directory: Path) -> str:
    """Return the Python that runs a contender's script, with its latest release installed.

    Its environment is made in ``directory``, or upgraded there.  Raises :class:`.PeerError` if it cannot be installed.
    """
    if not contender.requirements:
        return sys.executable
    place = directory / contender.script.stem
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(place))
    _run(str(python), "-m", "pip", "install", "--quiet", "--upgrade", *contender.requirements)
    return str(python)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise PeerError(f"not installable: {' '.join(errors)}")
