"""The Python code of each page runs on SQLite, from top to bottom in one namespace, unless readers save it in files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select
from sqlalchemy.orm import Session

from sqlqueue._support.processes import CONTEXT
from tests.docs.pages import PAGES, README, WITH_CODE, blocks, files, name

SHOWN = {"console", "dockerfile", "ini", "py", "sh", "sql", "text", "toml", "yaml"}
"""Languages of blocks that are not run; "py" is Python with packages that the tests do not install."""
IN_CHILD = {"django.md", "logs.md"}
"""Pages that run in separate processes, since they change global state such as Django's settings, and logging."""


@contextmanager
def disposing() -> Iterator[None]:
    """Dispose of every engine that connects within the block, since examples do not dispose of engines."""
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


def execute(page: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": page.stem}
    with disposing():
        for block in blocks(page):
            exec(compile(block, page, "exec", dont_inherit=True), namespace)
        for session in [value for value in namespace.values() if isinstance(value, Session)]:
            session.close()  # not all engines: others may be in use by threads that are about to end
    return namespace


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", [page for page in WITH_CODE if not files(page)], ids=name)
def test_a_page_runs(page: Path) -> None:
    if page.name not in IN_CHILD:
        execute(page)
        return
    child = CONTEXT.Process(target=execute, args=(page,))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_the_first_minute_sends_the_mail_and_completes_it(capsys: pytest.CaptureFixture[str]) -> None:
    namespace = execute(README)
    assert capsys.readouterr().out == "To: ada@example.org\n"
    with namespace["Session"]() as session:
        (email,) = session.scalars(select(namespace["Email"]))
        assert (email.recipient, email.status, email.attempt) == ("ada@example.org", "completed", 1)
    namespace["engine"].dispose()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_all_code_is_run_or_of_another_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("```python") == len(blocks(page))
    languages = [info for closing, info in re.findall(r"^ *(```+|:::+)(.*)$", text, re.MULTILINE)][::2]
    assert {info for info in languages if not info.startswith("{")} <= {"python", *SHOWN}
