"""The Python code of each page of the documentation passes mypy --strict and pyright."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import WITH_CODE, blocks, name
from tests.docs.pages import files as saved


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documented")
    for page in WITH_CODE:
        for file, text in saved(page).items():
            (directory / file).write_text(text.lstrip(), encoding="utf-8")
        if saved(page):
            continue
        module = re.sub(r"\W+", "_", name(page).removesuffix(".md")).lower()
        (directory / f"{module}.py").write_text("\n".join(map(str.lstrip, blocks(page))), encoding="utf-8")
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
