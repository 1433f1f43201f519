"""The Python code of README.md and docs/ passes mypy --strict and pyright, section by section."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIRST = "The first minute"
"""The section that all others of the README go on from."""
BLOCK = re.compile(r"^## ([^\n]+)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(path: Path) -> Iterator[tuple[str, str]]:
    """Each heading with code, and all of that."""
    found: dict[str, str] = {}
    heading = ""
    for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if match[1]:
            heading = match[1]
        else:
            found[heading] = found.get(heading, "") + match[2] + "\n"
    first = found.pop(FIRST, "")
    yield FIRST, first
    for heading, code in found.items():
        yield heading, f"{first}\n{code}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documented")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        for heading, code in sections(path):
            name = re.sub(r"\W+", "_", f"{path.stem}_{heading}").lower()
            (directory / f"{name}.py").write_text(code, encoding="utf-8")
    return directory


def check(directory: Path, *command: str) -> None:
    pytest.importorskip(command[0])
    ended = subprocess.run([sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_mypy(files: Path) -> None:
    names = sorted(path.name for path in files.glob("*.py"))
    assert len(names) >= 15
    check(files, "mypy", "--strict", "--python-version=3.11", "--cache-dir=cache", *names)


@pytest.mark.timeout(600)
def test_pyright(files: Path) -> None:
    check(files, "pyright", "--pythonpath", sys.executable, ".")
