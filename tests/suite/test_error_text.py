"""Any text of an error can be stored."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from tests.support.harness import Database
from tests.support.models import Task


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Odd(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 - that is the point


def stored(db: Database, error: BaseException | str, *, by: str = "fail") -> str | None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        getattr(session, by)(session.claim(Task), error)
    with Session(db.engine) as session:
        assert session.scalars(select(Task.status)).one() == ("retryable" if by == "fail" else "discarded")
        return session.scalars(select(Task.error)).one()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("key"), "KeyError: 'key'"),
        (ValueError("two\nlines\ttab"), "ValueError: two\nlines\ttab"),
        ('it\'s a "quoted" 100% \\ text :name %(name)s ?', 'it\'s a "quoted" 100% \\ text :name %(name)s ?'),
        ("Ünïcödé 漢字 🙈🏴\u200d☠", "Ünïcödé 漢字 🙈🏴\u200d☠"),
        ("a\0b", "a\\x00b"),
        ("half \ud83d of it", "half \\ud83d of it"),
        (Mute(), "Mute: (its message is not available)"),
        (Odd(), "Odd: (its message is not available)"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), None),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_text_is_stored_as_completely_as_possible(db: Database, error: Any, text: str | None) -> None:
    assert stored(db, error) == (text if text is not None else f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("by", ["fail", "discard"])
@pytest.mark.parametrize("character", ["x", "ü", "漢", "🙈", "\0", "\udcff"], ids=ascii)
def test_a_long_error_is_truncated(db: Database, by: str, character: str) -> None:
    text = stored(db, character * 5000, by=by)
    assert text is not None
    assert text.endswith("…")
    spelled = "\\x00" if character == "\0" else "\\udcff" if character == "\udcff" else character
    assert text[:40] == (spelled * 40)[:40]
    assert 990 < len(text) <= 2000


def test_the_longest_that_fits(db: Database) -> None:
    assert stored(db, "x" * 2000) == "x" * 2000


def test_a_long_error_in_a_block(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session, session.claiming(Task):
        raise ValueError("🙈\0\ud83d" * 3000)
    with Session(db.engine) as session:
        assert session.scalars(select(Task.status)).one() == "retryable"


def test_characters_that_count_twice(db: Database) -> None:
    """SQL Server and Oracle count a column's length in UTF-16."""
    text = stored(db, "🙈" * 1500)
    assert text is not None
    assert len(text.encode("utf-16-le")) <= 2 * 2000


def test_the_codec_is_loaded_with_the_library() -> None:
    """A process without free file descriptors cannot load it when an error occurs."""
    subprocess.run(
        [sys.executable, "-c", "import sqlqueue, sys; assert 'encodings.utf_16_le' in sys.modules"], check=True
    )
