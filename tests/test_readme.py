"""The Python code of README.md, run section by section on SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select
from sqlalchemy.orm import Session

README = Path(__file__).parent.parent / "README.md"
FIRST = "The first minute"


def sections() -> dict[str, list[str]]:
    """Heading -> its blocks of Python, each preceded by blank lines so that errors show the line in the README."""
    found: dict[str, list[str]] = {}
    text = README.read_text(encoding="utf-8")
    heading = ""
    for match in re.finditer(r"^## ([^\n]+)$|^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1]:
            heading = match[1]
        else:
            found.setdefault(heading, []).append("\n" * text.count("\n", 0, match.start(2)) + match[2])
    return found


SECTIONS = sections()


def execute(heading: str, namespace: dict[str, Any]) -> None:
    for block in SECTIONS[heading]:
        exec(compile(block, README, "exec", dont_inherit=True), namespace)


@contextmanager
def disposing() -> Iterator[None]:
    """Dispose of every engine that connects within: examples leave that to the end of the program."""
    engines: set[Engine] = set()

    def connected(connection: Connection) -> None:
        engines.add(connection.engine)

    event.listen(Engine, "engine_connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "engine_connect", connected)
        for engine in engines:
            engine.dispose()


@pytest.fixture
def first_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What every other section goes on from."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "readme"}
    with disposing():
        execute(FIRST, namespace)
        yield namespace
        for session in [value for value in namespace.values() if isinstance(value, Session)]:
            session.close()  # and not all there are: others' may be in use by threads that are about to end


@pytest.mark.parametrize("heading", [heading for heading in SECTIONS if heading != FIRST])
def test_a_section_runs(heading: str, first_minute: dict[str, Any]) -> None:
    execute(heading, first_minute)


def test_the_first_minute_sends_the_mail_and_completes_it(
    first_minute: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with first_minute["Session"]() as session:
        (email,) = session.scalars(select(first_minute["Email"]))
        assert (email.recipient, email.status, email.attempt) == ("ada@example.org", "completed", 1)
    execute(FIRST, {"__name__": "again"})
    assert capsys.readouterr().out == "To: ada@example.org\n"


@pytest.mark.parametrize("heading", ["Asyncio", "Any session"])
def test_what_these_sections_enqueue_is_completed(heading: str, first_minute: dict[str, Any]) -> None:
    execute(heading, first_minute)
    with first_minute["Session"]() as session:
        graces = session.scalars(select(first_minute["Email"].status).filter_by(recipient="grace@example.org")).all()
    assert graces
    assert set(graces) == {"completed"}


def test_every_block_that_looks_like_python_is_run() -> None:
    text = README.read_text(encoding="utf-8")
    assert sum(map(len, SECTIONS.values())) == text.count("```python") >= 15
    languages = set(re.findall(r"^```(\w*)$", text, re.MULTILINE))
    assert languages == {"", "python", "sh"}


def test_links_within_the_project_lead_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif "://" not in target:
            assert (README.parent / target).exists()
