"""Changes of many tasks are confirmed at a terminal, or by --yes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sqlqueue.cli import application
from tests.cli.invoking import FAILED, PROGRAM, out, put, run
from tests.support.models import Task


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["retry"], "retry 3 tasks of task (2 discarded, 1 abandoned)"),
        (["cancel"], "cancel 3 tasks of task (2 available, 1 running)"),
        (["discard", "--reason", "x"], "discard 3 tasks of task (2 available, 1 running)"),
        (["prune", "--older-than", "1d"], "prune 2 tasks of task (2 discarded)"),
    ],
)
def test_many_tasks_need_yes_without_a_terminal(url: str, arguments: list[str], said: str) -> None:
    put(url, Task, FAILED, FAILED, {}, {}, {"status": "running"})
    before = out("list")
    told = run(*arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == f"sqlqueue: this would {said}, and there is no terminal to confirm it: use --yes\n"
    assert out("list") == before
    assert run(*arguments, "--yes").exit_code == 0
    assert out("list") != before


@pytest.mark.parametrize("arguments", [["cancel"], ["discard", "--reason", "x"]])
def test_ending_all_tasks_needs_yes_even_if_there_is_one(url: str, arguments: list[str]) -> None:
    put(url, Task, {})
    told = run(*arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    assert f"this would {arguments[0]} 1 task of task (1 available)" in told.stderr
    assert run(*arguments, "--status", "available").exit_code == 0


def retried(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, "retry", "tests.support.models:Task", *arguments]
    return subprocess.run(command, text=True, check=False, timeout=60, cwd=Path(__file__).parents[2], **streams)


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 1, 2)])
def test_a_terminal_is_asked_for_confirmation(
    url: str, answer: str, status: int, left: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(url, Task, FAILED, FAILED)
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    with os.fdopen(end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            application()(["retry", "tests.support.models:Task"])
    os.close(terminal)
    told, asked = capsys.readouterr()
    assert ended.value.code == status, asked
    assert "Retry 2 tasks of task (2 discarded)? [y/N]" in asked
    assert told.strip() == ("2 tasks of task are available again." if not status else "")
    assert ("discarded  abandoned" in out("stats")) is bool(left)


def test_progress_is_shown_only_on_a_terminal(url: str) -> None:
    put(url, Task, *[FAILED] * 3)
    terminal, end = pty.openpty()
    told = retried("--yes", stdout=subprocess.PIPE, stderr=end)
    seen = os.read(terminal, 100_000).decode()
    os.close(terminal)
    os.close(end)
    assert told.stdout == "3 tasks of task are available again.\n"
    assert "3/3" in seen
    put(url, Task, *[FAILED] * 3)
    assert run("retry", "--yes").stderr == ""
