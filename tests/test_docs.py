"""What the documentation points to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PAGES = sorted((PROJECT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_each_guarantee_has_its_test() -> None:
    text = (PROJECT / "docs" / "semantics.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| effects")]
    assert len(rows) > 10
    for row in rows:
        proofs = re.findall(r"\[(test_\w+)\]\(([^)]+)\)", row)
        assert proofs, row
        for name, path in proofs:
            functions = ast.walk(ast.parse((PROJECT / "docs" / path).read_text(encoding="utf-8")))
            assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}
