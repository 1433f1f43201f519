"""Virtual environments with the latest releases of other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copy, which

from .contenders import PeerContender, PeerError

_PATIENCE = 600
"""The time limit of a command, in seconds."""


def command_of(contender: PeerContender, directory: Path) -> tuple[str, ...]:
    """Return the command that runs a contender's script, with its latest release installed.

    The environment is created in ``directory``, or upgraded if it exists.  Raises :class:`.PeerError` if it cannot be
    installed.
    """
    if not contender.requirements:
        return (sys.executable, str(contender.script))
    place = directory / contender.script.stem
    return (_in_node if contender.script.suffix == ".cjs" else _in_python)(contender, place)


def _in_python(contender: PeerContender, place: Path) -> tuple[str, ...]:
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(place))
    _run(str(python), "-m", "pip", "install", "--quiet", "--upgrade", *contender.requirements)
    return (str(python), str(contender.script))


def _in_node(contender: PeerContender, place: Path) -> tuple[str, ...]:
    node, npm = which("node"), which("npm")
    if node is None or npm is None:
        raise PeerError("cannot be installed: Node.js with npm is missing")
    place.mkdir(parents=True, exist_ok=True)
    _run(npm, "install", "--silent", "--prefix", str(place), *(f"{each}@latest" for each in contender.requirements))
    # Node.js looks packages up from the script's directory
    return (node, str(copy(contender.script, place)))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "npm error"))] or lines[-1:]
        raise PeerError(f"cannot be installed: {' '.join(errors)}")
