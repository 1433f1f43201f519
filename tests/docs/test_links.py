"""Links from the documentation to files are valid.  The build of the site checks the links between its pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PROJECT, README, name

ROOT = [README, *(PROJECT / page for page in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
SEMANTICS = PROJECT / "docs" / "explanation" / "semantics.md"


@pytest.mark.parametrize("page", list(dict.fromkeys([*PAGES, *ROOT])), ids=name)
def test_links_point_to_existing_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", ROOT, ids=name)
def test_links_within_a_page_point_to_a_heading(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.parametrize("heading", ["guarantee", "when the process dies", "failure"])
def test_each_guarantee_has_its_test(heading: str) -> None:
    table = re.search(rf"^\| {heading} \|.*?\n\n", SEMANTICS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = table[0].strip().splitlines()[2:]
    assert len(rows) > 5
    for row in rows:
        assert "[test_" in row or "as above" in row, row


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_test_that_is_named_exists(page: Path) -> None:
    for test, path in re.findall(r"\[(test_\w+)\]\(([^)]+\.py)\)", page.read_text(encoding="utf-8")):
        functions = ast.walk(ast.parse((page.parent / path).read_text(encoding="utf-8")))
        assert test in {each.name for each in functions if isinstance(each, ast.FunctionDef)}, test
