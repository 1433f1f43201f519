"""Finding and reading the files of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

_SKIPPED = frozenset({".git", ".hg", ".svn"})
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file: its path below the folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The results of reading a file."""

    sha256: str
    lines: int
    words: int


def scan(folder: Path) -> Iterator[Found]:
    """Yield the regular files below ``folder``.  Links are not followed, to avoid loops."""
    for directory, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted(files):
            path = os.path.join(directory, name)
            size = _size(path)
            if size is not None:
                yield Found(os.path.relpath(path, folder), size)


def _size(path: str) -> int | None:
    """Return the size of a regular file; ``None`` for anything else, a file that was deleted, or a name that is not
    valid text."""
    try:
        path.encode()
        status = os.lstat(path)
    except (OSError, UnicodeEncodeError):
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def read(path: Path) -> Contents:
    """Read a file of any size, in chunks, and return its hash and counts; raises ``OSError``."""
    digest, lines, words, within_word = hashlib.sha256(), 0, 0, False
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            words += len(chunk.split()) - (within_word and not chunk[:1].isspace())
            within_word = not chunk[-1:].isspace()
    return Contents(digest.hexdigest(), lines, words)
