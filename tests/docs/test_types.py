"""The Python code of each page of the documentation passes mypy --strict and pyright."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import WITH_CODE, blocks, name
from tests.docs.pages import files as saved

ROOT = Path(__file__).parents[2]


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


def check(directory: Path, *command: str, **environment: str) -> None:
    pytest.importorskip(command[0])
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_mypy(files: Path) -> None:
    paths = sorted(map(str, files.glob("*.py")))
    assert len(paths) >= 15
    # with the project's configuration, which is strict, it uses what it knows of the package already
    check(ROOT, "mypy", *paths, MYPYPATH=str(files))


@pytest.mark.timeout(600)
def test_pyright(files: Path) -> None:
    check(files, "pyright", "--pythonpath", sys.executable, ".")
