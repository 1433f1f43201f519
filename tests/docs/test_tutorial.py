"""A reader who saves the files of the tutorial and runs its commands sees what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT, files
from tests.examples.running import run, running, work

TUTORIAL = PROJECT / "docs" / "tutorial" / "first-queue.md"


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of each command, and the lines that it prints according to the page."""
    for block in re.findall(r"^```console\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for text in block.split("$ ")[1:]:
            command, *output = text.splitlines()
            yield command.split(), output


@pytest.mark.timeout(600)
def test_the_files_and_commands(tmp_path: Path) -> None:
    for name, text in files(TUTORIAL).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ran = []
    for (program, *arguments), lines in commands():
        ran.append(" ".join([program, *arguments[:1]]))
        if program == "pip":
            continue
        if "work" not in arguments:
            output = run(tmp_path, program, *arguments)
            assert output.splitlines() == lines if program == "python" else output
            continue
        with running(tmp_path, *work(arguments[1]), PYTHONUNBUFFERED="1") as worker:
            assert worker.stdout is not None
            missing = list(lines)
            while missing:
                printed = worker.stdout.readline()
                assert printed, f"it ended without {missing}"
                missing = [line for line in missing if line not in printed]
    assert ran == [
        "pip install",
        "python signup.py",
        "python by_hand.py",
        "python by_hand.py",
        "python order.py",
        "sqlqueue work",
        "sqlqueue stats",
        "sqlqueue list",
        "sqlqueue show",
        "sqlqueue check",
    ]
