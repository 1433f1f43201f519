"""The demo's database: a temporary SQLite file, or the database of a URL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine

from ..database import created_tables, reached
from .models import Base


@contextmanager
def tables(url: str | None, *, keep: bool, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the demo's tables, and drop them afterwards unless ``keep``.

    Raises :class:`.EvaluationError` if the database cannot be used, or the tables exist and ``drop`` is not given.
    """
    with ExitStack() as stack:
        engine = reached(url or _temporary(stack, keep=keep))
        stack.callback(engine.dispose)
        advice = "another demo is running, or its tables were kept. --drop replaces them."
        stack.enter_context(created_tables(engine, Base.metadata, drop=drop, advice=advice, keep=keep or not url))
        yield engine


def _temporary(stack: ExitStack, *, keep: bool) -> str:
    directory = tempfile.mkdtemp(prefix="sqlqueue-demo-")
    if not keep:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return f"sqlite:///{directory}/demo.db"
