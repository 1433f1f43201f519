"""The pages of the documentation, and the Python code in them."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """Return the page's blocks of Python, each after blank lines, so that errors show the line of the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


def files(page: Path) -> dict[str, str]:
    """Return the blocks that a reader saves, by the name of the file, which is in the first line of each."""
    found = (re.match(r"\n*# (\w+\.py)\n", block) for block in blocks(page))
    return {match[1]: match.string for match in found if match}


def name(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix()


WITH_CODE = [page for page in PAGES if blocks(page)]
